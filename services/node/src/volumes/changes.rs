//! A person's changes of a volume.

use super::book::{Id, Record};
use super::keep::{Keeper, Slot, grown, in_use};
use admin::volume::{Change, ChangeVolume, CreateVolume, VolumeRow};
use admin::{Code, Problem};
use storage::{Engine, StorageError};
use topology::Name;

impl Keeper {
    /// Makes an empty volume.
    pub(crate) async fn create(&self, request: CreateVolume) -> Result<VolumeRow, Problem> {
        let parts = request.name.split_once('/').map(|(dc, name)| (Name::parse(dc), Name::parse(name)));
        let Some((Ok(dc), Ok(name))) = parts else {
            return Err(Problem::new(Code::BadRequest, format!("{:?} is no name of a volume", request.name))
                .help("say DC/NAME, such as shop/data: letters, digits and dashes"));
        };
        let id: Id = (dc.as_str().to_owned(), name.as_str().to_owned());
        let CreateVolume { bytes, format, store, .. } = request;
        let slot = self.slot(&id);
        {
            let _mine = slot.lock().await;
            let of = id.clone();
            let made = self.book(move |ground| ground.book.make(&of, &Record::new(format, store, bytes)));
            made.await?;
        }
        self.show(&request.name).await
    }

    /// Does something with a volume; what is left of it.
    pub(crate) async fn change(&self, request: ChangeVolume) -> Result<Option<VolumeRow>, Problem> {
        let (id, _) = self.find(&request.name).await?;
        let slot = self.slot(&id);
        {
            let mut slot = slot.lock().await;
            let of = id.clone();
            // Nobody else changes it from here on.
            let record = self.book(move |ground| ground.book.get(&of)).await?;
            let record = record.ok_or_else(|| {
                Problem::new(Code::UnknownVolume, format!("the volume {} has just gone", request.name))
            })?;
            if record.replica.is_some() && !matches!(request.change, Change::Remove) {
                let message = format!(
                    "the volume {} has replicas on several nodes, and this would change one of them alone",
                    request.name
                );
                return Err(Problem::new(Code::BadRequest, message)
                    .help("a replicated volume keeps its size and has no snapshots yet"));
            }
            match request.change {
                Change::Remove => {
                    self.remove(&id, record, &slot).await?;
                    return Ok(None);
                }
                Change::Resize { bytes } => self.resize(&id, record, bytes, &slot).await?,
                Change::Restore { name } => self.restore(&id, record, name, &slot).await?,
                Change::Snapshot { name } => {
                    let name = checked(&name)?;
                    self.snapshots(&id, record, &mut slot, move |engine| engine.snapshot(name.as_str()))
                        .await?;
                }
                Change::Forget { name } => {
                    self.snapshots(&id, record, &mut slot, move |engine| engine.forget(&name)).await?;
                }
            }
        }
        self.show(&format!("{}/{}", id.0, id.1)).await.map(Some)
    }

    async fn remove(&self, id: &Id, record: Record, slot: &Slot) -> Result<(), Problem> {
        must_be_idle(id, slot)?;
        if let (true, Some(replicas)) = (record.replica.is_some(), &self.replicas) {
            return replicas.remove(id, &record).await;
        }
        let of = id.clone();
        self.book(move |ground| {
            ground.clear(&of);
            ground.book.remove(&of, &record)?;
            ground.clear(&of);
            Ok(())
        })
        .await
    }

    async fn resize(&self, id: &Id, record: Record, bytes: u64, slot: &Slot) -> Result<(), Problem> {
        must_be_idle(id, slot)?;
        must_be_made(id, &record)?;
        if bytes < record.bytes {
            let message = format!("the volume has {} bytes, and never shrinks", record.bytes);
            return Err(Problem::new(Code::BadRequest, message));
        }
        let of = id.clone();
        self.book(move |ground| {
            let mut engine = ground.find_or_start(&of, &record)?;
            let done = grown(&ground.book, &of, record, bytes, &mut engine);
            engine.stop();
            ground.clear(&of);
            done.map(drop)
        })
        .await
    }

    async fn restore(&self, id: &Id, record: Record, name: String, slot: &Slot) -> Result<(), Problem> {
        must_be_idle(id, slot)?;
        must_be_made(id, &record)?;
        let of = id.clone();
        self.book(move |ground| {
            ground.restore(&of, &record, &name)?;
            // A snapshot of a smaller volume makes it smaller.
            let mut engine = ground.find_or_start(&of, &record)?;
            let facts = engine.facts().map_err(said);
            engine.stop();
            ground.clear(&of);
            let facts = facts?;
            ground.book.put(&of, &Record { bytes: facts.bytes, snapshots: facts.snapshots, ..record })
        })
        .await
    }

    /// Has the engine do something about snapshots, whoever has the volume, and writes down which
    /// there are.
    async fn snapshots(
        &self,
        id: &Id,
        record: Record,
        slot: &mut Slot,
        work: impl FnOnce(&mut Engine) -> Result<(), StorageError> + Send + 'static,
    ) -> Result<(), Problem> {
        must_be_made(id, &record)?;
        let work = move |engine: &mut Engine| work(engine).and_then(|()| engine.facts());
        let of = id.clone();
        let done = match &slot.serving {
            Some(serving) => {
                let done = serving.with_engine(work).await.map_err(|why| Problem::new(Code::Failed, why))?;
                let again =
                    || Problem::new(Code::NotRunning, "the volume's engine is being started; try again");
                done.ok_or_else(again)?
            }
            None => {
                let (of, record) = (id.clone(), record.clone());
                self.book(move |ground| {
                    let mut engine = ground.find_or_start(&of, &record)?;
                    let done = work(&mut engine);
                    engine.stop();
                    ground.clear(&of);
                    Ok(done)
                })
                .await?
            }
        };
        let facts = done.map_err(said)?;
        self.book(move |ground| ground.book.put(&of, &Record { snapshots: facts.snapshots, ..record })).await
    }
}

fn said(error: StorageError) -> Problem {
    let problem = Problem::new(Code::Failed, error.to_string());
    match &error {
        StorageError::Refused { why, .. } if why.contains("does not support internal snapshots") => {
            problem.help("only volumes of the format qcow2 have snapshots")
        }
        _ => problem,
    }
}

fn checked(name: &str) -> Result<Name, Problem> {
    Name::parse(name)
        .map_err(|why| Problem::new(Code::BadRequest, format!("{name:?} is no name of a snapshot: {why}")))
}

fn must_be_idle(id: &Id, slot: &Slot) -> Result<(), Problem> {
    slot.serving.as_ref().map_or(Ok(()), |serving| Err(in_use(id, &serving.domain)))
}

fn must_be_made(id: &Id, record: &Record) -> Result<(), Problem> {
    if record.made {
        return Ok(());
    }
    Err(Problem::new(Code::Failed, format!("the volume {}/{} was never finished", id.0, id.1))
        .help("start its domain, which makes it; or `tombolo volume rm`"))
}
