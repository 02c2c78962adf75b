//! File trees: a directory that several domains share through a server of ours, used by stock
//! programs.

use e2e::{Node, node, wait};
use serde_json::json;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// How often the server is killed under load.
const KILLS: u32 = 3;

/// A distributed container in which `disk` serves a tree; `hall` and `attic` write to it, `cellar`
/// reads.
pub(crate) fn topology(settings: &str) -> String {
    let client = |name: &str| {
        format!(
            "[domain.{name}]\nkind = \"container\"\nroot = \"host\"\ncommand = [\"sleep\", \"infinity\"]\n\
             services = {{ tree = \"/srv/tree\" }}\n"
        )
    };
    format!(
        "name = \"house\"\n[domain.disk]\nkind = \"container\"\n\
         restart = {{ policy = \"always\", backoff = \"50ms\", max_backoff = \"500ms\" }}\n{}{}{}\
         [service.tree]\nkind = \"files\"\ndomain = \"disk\"\n\
         allow = [{{ domains = [\"hall\", \"attic\"], verbs = [\"write\"] }}, {{ domains = [\"cellar\"], verbs = [\"read\"] }}]\n\
         {settings}\n",
        client("hall"),
        client("attic"),
        client("cellar"),
    )
}

pub(crate) fn start(settings: &str) -> Option<Node> {
    let node = Node::start()?;
    node.up_ok(&topology(settings));
    wait::until("the tree is served", || node.shell("cellar", "ls /srv/tree").code == 0);
    Some(node)
}

pub(crate) fn server(node: &Node) -> u32 {
    let tree = node.json(&["inspect", "dc/house/domains/disk"]);
    tree["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("it runs")
}

#[track_caller]
fn refused(node: &Node, domain: &str, line: &str, why: &str) {
    let run = node.shell(domain, line);
    assert!(run.code != 0 && run.err.contains(why), "{line}: {run:?}");
}

/// A program in a domain that is asked line by line, and keeps its files open meanwhile.
pub(crate) struct Program {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Program {
    /// Python that answers each line of its input with one line, by `answer`; `f` is the file,
    /// opened so.
    pub(crate) fn code(open: &str, answer: &str) -> String {
        format!("import os,sys\nf={open}\nfor line in sys.stdin:\n print({answer},flush=True)\n")
    }

    fn start(node: &Node, domain: &str, open: &str, answer: &str) -> Self {
        let code = Self::code(open, answer);
        Self::run(node.command(&["exec", "-i", domain, "--", "/usr/bin/python3", "-c", &code]))
    }

    pub(crate) fn run(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("tombolo starts");
        let stdin = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        Self { child, stdin, lines }
    }

    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.hear()
    }

    pub(crate) fn say(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().expect("its input"), "{line}").expect("asked");
    }

    pub(crate) fn hear(&mut self) -> String {
        self.lines.next().expect("a line").expect("read")
    }

    /// Waits until it has ended, however.
    pub(crate) fn gone(mut self) {
        self.child.wait().expect("it ends");
    }

    pub(crate) fn end(mut self) {
        drop(self.stdin.take());
        assert!(self.child.wait().expect("it ends").success());
    }
}

pub(crate) const LOOK: &str = "os.pread(f,99,0),os.fstat(f).st_size";

#[test]
fn what_one_domain_writes_the_others_read_at_once() {
    let Some(node) = start("") else { return };
    let hall = |line: &str| node.shell_ok("hall", line);
    let attic = |line: &str| node.shell_ok("attic", line);
    hall("mkdir -p /srv/tree/a/b && echo one > /srv/tree/a/b/f");
    assert_eq!(attic("cat /srv/tree/a/b/f"), "one\n");
    // An open file shows each write, each new size, and each cut; and what is in it when its name
    // is gone, or another's.
    let mut reader = Program::start(&node, "cellar", "os.open('/srv/tree/a/b/f',os.O_RDONLY)", LOOK);
    assert_eq!(reader.ask("?"), "b'one\\n' 4");
    attic("echo two >> /srv/tree/a/b/f");
    assert_eq!(reader.ask("?"), "b'one\\ntwo\\n' 8");
    attic("echo 3 > /srv/tree/a/b/f");
    assert_eq!(reader.ask("?"), "b'3\\n' 2");
    hall("echo new > /srv/tree/new && mv /srv/tree/new /srv/tree/a/b/f");
    assert_eq!(attic("cat /srv/tree/a/b/f"), "new\n");
    assert_eq!(reader.ask("?"), "b'3\\n' 2");
    reader.end();
    let mut writer =
        Program::start(&node, "hall", "os.open('/srv/tree/t',os.O_RDWR|os.O_CREAT)", "os.write(f,b'x')");
    assert_eq!(writer.ask("?"), "1");
    attic("rm /srv/tree/t && echo other > /srv/tree/t");
    assert_eq!(writer.ask("?"), "1");
    assert_eq!(attic("cat /srv/tree/t"), "other\n");
    writer.end();
    // Both append, and nothing is lost.
    let append = |name: &str| format!("for i in $(seq 200); do echo {name} >> /srv/tree/log; done");
    std::thread::scope(|scope| {
        scope.spawn(|| hall(&append("hall")));
        scope.spawn(|| attic(&append("attic")));
    });
    assert_eq!(attic("sort /srv/tree/log | uniq -c | tr -s ' '"), " 200 attic\n 200 hall\n");
    // Holes, sizes, sync, names of any bytes.
    hall(
        "truncate -s 64M /srv/tree/hole && dd if=/dev/urandom of=/srv/tree/hole bs=1M count=3 seek=50 conv=notrunc,fsync status=none",
    );
    assert_eq!(attic("sha256sum < /srv/tree/hole"), hall("sha256sum < /srv/tree/hole"));
    hall("touch \"$(printf '/srv/tree/\\377 \\n*')\" && sync -d /srv/tree/hole");
    assert_eq!(attic("ls /srv/tree | LC_ALL=C grep -c \"$(printf '\\377')\""), "1\n");
    hall("mkdir /srv/tree/many && cd /srv/tree/many && seq 2000 | xargs touch");
    assert_eq!(attic("ls /srv/tree/many | wc -l"), "2000\n");
    attic("rm -r /srv/tree/many");
    refused(&node, "hall", "ls /srv/tree/many", "No such file");
    // Who may only read does; nobody makes what is neither a file nor a folder.
    refused(&node, "cellar", "echo x > /srv/tree/a/b/f", "ermission denied");
    refused(&node, "cellar", "rm -f /srv/tree/a/b/f", "ermission denied");
    refused(&node, "cellar", "mkdir /srv/tree/c", "ermission denied");
    refused(&node, "hall", "mkfifo /srv/tree/p", "not permitted");
    hall("cp /bin/true /srv/tree/true && chmod 4755 /srv/tree/true; test ! -u /srv/tree/true");
    // The directory is the node's, with what is in the tree.
    let store = node.state_dir().join("files/house/disk/tree");
    assert_eq!(std::fs::read_to_string(store.join("a/b/f")).expect("there"), "new\n");
    node.ok(&["down", "house"]);
    node.up_ok(&topology(""));
    wait::until("the tree is as it was", || node.shell("cellar", "cat /srv/tree/a/b/f").out == "new\n");
}

// A link is a path that whoever opens it follows, in its own root; the server never does.
#[test]
fn links_are_followed_by_whoever_opens_them_and_df_shows_the_quota() {
    let Some(node) = start("settings = { bytes = \"16MiB\", inodes = 100 }") else { return };
    let hall = |line: &str| node.shell_ok("hall", line);
    let attic = |line: &str| node.shell_ok("attic", line);
    hall("mkdir /srv/tree/d && echo one > /srv/tree/d/f && ln -s d/f /srv/tree/l && ln -s d /srv/tree/e");
    assert_eq!(attic("readlink /srv/tree/l && cat /srv/tree/l /srv/tree/e/f"), "d/f\none\none\n");
    attic("echo two > /srv/tree/l");
    assert_eq!(hall("cat /srv/tree/d/f"), "two\n");
    assert_eq!(attic("ls -F /srv/tree | tr '\\n' ' '"), "d/ e@ l@ ");
    // It leads out of the tree into the files of whoever follows it.
    hall("ln -s ../self/name /srv/tree/out && ln -s /srv/self/name /srv/tree/far");
    assert_eq!(hall("cat /srv/tree/out /srv/tree/far"), "hall\nhall\n");
    assert_eq!(attic("cat /srv/tree/out /srv/tree/far"), "attic\nattic\n");
    hall("ln -s itself /srv/tree/itself && ln -s nowhere /srv/tree/dangling");
    refused(&node, "attic", "cat /srv/tree/itself", "Too many levels");
    refused(&node, "attic", "cat /srv/tree/dangling", "No such file");
    refused(&node, "attic", "ln -s x /srv/tree/l", "File exists");
    refused(&node, "cellar", "ln -s x /srv/tree/y", "ermission denied");
    // Renamed, linked, touched and removed, it is the link, and not what it leads to.
    hall("mv /srv/tree/l /srv/tree/m && ln /srv/tree/m /srv/tree/n && touch -h -d @1000 /srv/tree/m");
    assert_eq!(attic("stat -c '%F %h %Y %s' /srv/tree/n"), "symbolic link 2 1000 3\n");
    attic("rm /srv/tree/m /srv/tree/n && rm -r /srv/tree/e");
    assert_eq!(hall("cat /srv/tree/d/f"), "two\n");
    // The server dies, and knows them again.
    node::kill(server(&node));
    assert_eq!(attic("readlink /srv/tree/out"), "../self/name\n");
    // df shows the quota and what is left of it, to each domain that sees the tree.
    hall("head -c 4M /dev/zero > /srv/tree/four");
    let df = "df --output=size,avail,itotal -B1 /srv/tree/d | tail -1";
    let shown: Vec<u64> =
        node.shell_ok("cellar", df).split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert_eq!((shown[0], shown[2]), (16 << 20, 100), "{shown:?}");
    assert!((11 << 20..=12 << 20).contains(&shown[1]), "{shown:?}");
    let room = node.shell_ok("cellar", "stat -f -c '%b %S %c' /srv/tree");
    assert_eq!(room, "4096 4096 100\n");
}

/// Attributes of users are the file's, in every domain; others are refused as what no file system
/// here has.
#[test]
fn extended_attributes_are_seen_by_all_domains() {
    let Some(node) = start("settings = { bytes = \"16MiB\", inodes = 100 }") else { return };
    let python = |domain: &str, code: &str| {
        let code = format!(
            "import os,errno\np='/srv/tree/f'\ndef no(e,f,*a):\n try: f(*a)\n except OSError as x: assert x.errno==e,x\n \
             else: raise SystemExit('%s was done'%(a,))\n{code}"
        );
        node.ok(&["exec", domain, "--", "/usr/bin/python3", "-c", &code])
    };
    node.shell_ok("hall", "echo one > /srv/tree/f; mkdir /srv/tree/d; ln -s f /srv/tree/l");
    python("hall", "os.setxattr(p,'user.origin',b'http://\\0x'); os.setxattr('/srv/tree/d','user.d',b'')");
    let seen = "print(os.listxattr(p),os.getxattr(p,'user.origin'),os.listxattr('/srv/tree/d'))";
    let all = "['user.origin'] b'http://\\x00x' ['user.d']\n";
    assert_eq!((python("attic", seen), python("cellar", seen)), (all.to_owned(), all.to_owned()));
    python("cellar", "no(errno.EACCES,os.setxattr,p,'user.x',b'')");
    let attic = "no(errno.EEXIST,os.setxattr,p,'user.origin',b'',os.XATTR_CREATE)\n\
         no(errno.ENODATA,os.setxattr,p,'user.none',b'',os.XATTR_REPLACE)\n\
         no(errno.ENODATA,os.getxattr,p,'user.none')\n\
         no(errno.ERANGE,os.setxattr,p,'user.long',bytes(5000))\n\
         no(errno.EOPNOTSUPP,os.getxattr,p,'security.capability')\n\
         no(errno.EOPNOTSUPP,os.setxattr,p,'system.posix_acl_access',b'')\n\
         no(errno.EPERM,lambda: os.setxattr('/srv/tree/l','user.x',b'',follow_symlinks=False))\n\
         no(errno.EOPNOTSUPP,os.getxattr,'/srv/self/name','user.x')\n\
         no(errno.EOPNOTSUPP,os.listxattr,'/srv/self/name')\n\
         why=n=0\nwhile not why and n<1000:\n try: os.setxattr(p,'user.%d'%n,b'x'*300); n+=1\n except OSError as e: why=e.errno\n\
         assert why==errno.ENOSPC and n>5,(n,why)\n\
         os.removexattr(p,'user.origin')";
    python("attic", attic);
    node.shell_ok("hall", "cp -a /srv/tree/f /srv/tree/copy && mv /srv/tree/copy /srv/tree/f");
    node::kill(server(&node));
    let left = "names=os.listxattr(p); assert 'user.origin' not in names and len(names)>5,names\nprint(os.getxattr(p,'user.0')==b'x'*300)";
    assert_eq!(python("cellar", left), "True\n");
    // The long name is told as what it is.
    python("hall", "no(errno.ENAMETOOLONG,open,'/srv/tree/'+'n'*256,'w'); open('/srv/tree/'+'n'*255,'w')");
}

#[test]
fn git_keeps_a_repository_in_a_tree() {
    let Some(node) = start("") else { return };
    let git = |domain: &str, line: &str| {
        let set = "export HOME=/nowhere GIT_CONFIG_COUNT=3 GIT_CONFIG_KEY_0=user.name GIT_CONFIG_VALUE_0=a GIT_CONFIG_KEY_1=user.email \
                   GIT_CONFIG_VALUE_1=a@b GIT_CONFIG_KEY_2=safe.directory GIT_CONFIG_VALUE_2='*'";
        node.shell_ok(domain, &format!("{set}; cd /srv/tree && {line}"))
    };
    git(
        "hall",
        "git init -q r && cd r && for i in $(seq 50); do echo $i > f$i; done && git add . && git commit -qm one",
    );
    git(
        "attic",
        "cd r && git rm -q f1 && echo x >> f2 && git commit -qam two && git gc -q && git fsck --strict --full",
    );
    git("hall", "cd r && git status --short | wc -l && git clone -q . ../copy && git -C ../copy fsck --full");
    assert_eq!(git("cellar", "git --no-optional-locks -C copy log --format=%s"), "two\none\n");
}

// The server is killed at any time: what was synced is there, open files go on, numbers mean what
// they meant.
#[test]
fn a_server_dies_under_open_files_which_go_on() {
    let Some(node) = start("") else { return };
    node.shell_ok("hall", "mkdir /srv/tree/d && echo kept > /srv/tree/d/gone");
    let mut open = Program::start(&node, "attic", "os.open('/srv/tree/d/gone',os.O_RDWR)", LOOK);
    assert_eq!(open.ask("?"), "b'kept\\n' 5");
    let there = "os.chdir('/srv/tree/d') or os.open('/srv/tree/d/log',os.O_RDWR|os.O_CREAT)";
    let answer = "os.write(f,line.encode()),os.fsync(f),len(os.listdir('.'))";
    let mut writer = Program::start(&node, "hall", there, answer);
    node.shell_ok("hall", "rm /srv/tree/d/gone");
    for kill in 0..KILLS {
        assert_eq!(writer.ask(&format!("before{kill}")), "8 None 1");
        node::kill(server(&node));
        assert_eq!(writer.ask(&format!("after{kill}.")), "8 None 1");
        assert_eq!(open.ask("?"), "b'kept\\n' 5", "an unlinked file");
    }
    let expected: String = (0..KILLS).map(|kill| format!("before{kill}\nafter{kill}.\n")).collect();
    assert_eq!(node.shell_ok("cellar", "cat /srv/tree/d/log"), expected);
    writer.end();
    open.end();
    // Nobody has the unlinked file any more: its bytes are free.
    let own = node.state_dir().join("files/house/disk/tree/.tombolo");
    wait::until("the unlinked file is gone", || std::fs::read_dir(&own).expect("its own").count() == 1);
}

#[test]
fn a_hostile_tenant_takes_its_quota_and_nobody_elses_time() {
    let Some(node) = start("settings = { bytes = \"16MiB\", inodes = 3000 }") else { return };
    node.shell_ok("attic", "echo mine > /srv/tree/mine");
    refused(&node, "hall", "dd if=/dev/zero of=/srv/tree/full bs=1M count=64 status=none", "quota");
    assert_eq!(node.shell_ok("attic", "cat /srv/tree/mine"), "mine\n");
    refused(&node, "attic", "head -c 100000 /dev/zero > /srv/tree/more", "quota");
    node.shell_ok("hall", "rm /srv/tree/full");
    node.shell_ok("attic", "echo more > /srv/tree/more");
    refused(&node, "hall", "cd /srv/tree && mkdir many && cd many && seq 5000 | xargs touch", "quota");
    node.shell_ok("hall", "rm -r /srv/tree/many");
    // A deep tree ends where paths end, and goes again.
    let deep = "import os\nos.chdir('/srv/tree')\nn=0\ntry:\n while True:\n  os.mkdir('d'); os.chdir('d'); n+=1\nexcept OSError as e: print(e.errno, n > 1000)\n";
    let said = node.ok(&["exec", "hall", "--", "/usr/bin/python3", "-c", deep]);
    assert_eq!(said, "36 True\n");
    node.shell_ok("hall", "rm -r /srv/tree/d");
    assert_eq!(node.shell_ok("cellar", "ls /srv/tree"), "mine\nmore\n");
    // More is allowed while it runs.
    let said = node.up_ok(&topology("settings = { bytes = \"64MiB\", inodes = 3000 }"));
    assert!(said.contains("update service tree while it runs: `settings.bytes` changed"), "{said}");
    wait::until("there is room", || node.shell("hall", "head -c 20M /dev/zero > /srv/tree/full").code == 0);
    let row = node.json(&["service", "ls"]);
    let row = row
        .as_array()
        .expect("a list")
        .iter()
        .find(|row| row["service"] == "tree")
        .expect("the service")
        .clone();
    assert_eq!((&row["kind"], &row["up"]), (&json!("files"), &json!(true)), "{row}");
}

/// Stressors of stress-ng that check what they read back. Each does so much and ends by itself: a
/// signal would end a call with `EINTR`.
#[test]
fn the_stressors_of_file_systems_find_nothing_wrong() {
    let Some(node) = start("settings = { bytes = \"256MiB\" }") else { return };
    let stress = |domain: &str| {
        let line = format!(
            "mkdir /srv/tree/{domain} && stress-ng --temp-path /srv/tree/{domain} --verify --timeout 60s --hdd 1 --hdd-bytes 8M --hdd-ops 300 \
             --dir 1 --dir-dirs 64 --dir-ops 300 --seek 1 --seek-size 1M --seek-ops 1000 --utime 1 --utime-ops 500 2>&1"
        );
        let run = node.shell(domain, &line);
        assert!(run.code == 0 && !run.out.contains("stress-ng: fail:"), "{domain}: {run:?}");
    };
    std::thread::scope(|scope| {
        scope.spawn(|| stress("hall"));
        scope.spawn(|| stress("attic"));
    });
    assert_eq!(node.shell_ok("cellar", "find /srv/tree -type f | wc -l").trim(), "0");
}
