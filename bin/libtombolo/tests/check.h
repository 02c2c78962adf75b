/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the C programs of these tests have in common. */
#ifndef TOMBOLO_TESTS_CHECK_H
#define TOMBOLO_TESTS_CHECK_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <tombolo/endpoint.h>

#define SECOND INT64_C(1000000000)
/* Numbers of descriptors that are looked at: those of the library are above 1000 where the program may have so many. */
#define NUMBERS 4096

static inline void fail(int line, const char *what)
{
	fprintf(stderr, "line %d: %s; errno %d (%s); \"%s\"\n", line, what, errno, strerror(errno), tombolo_error_text());
	exit(1);
}

#define CHECK(what) ((what) ? (void)0 : fail(__LINE__, #what))
#define FAILS(call, number) (errno = 0, CHECK((call) == -1), CHECK(errno == (number)), CHECK(tombolo_error_text()[0] != 0))

static inline struct tombolo_options options_of(uint32_t flags)
{
	struct tombolo_options options;
	memset(&options, 0, sizeof options);
	options.size = sizeof options;
	options.flags = flags;
	return options;
}

static inline const char *path_of(const char *name)
{
	static char path[256];
	snprintf(path, sizeof path, "%s/%s", getenv("FOLDER"), name);
	return path;
}

static inline int is_readable(int descriptor, int timeout_ms)
{
	struct pollfd polled = {descriptor, POLLIN, 0};
	int ready = poll(&polled, 1, timeout_ms);
	CHECK(ready >= 0);
	return ready;
}

static inline void finish_child(pid_t child)
{
	int status = -1;
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Nothing stays behind: not a descriptor. */
static inline int descriptors_open(void)
{
	int count = 0, i;
	for (i = 0; i < NUMBERS; i++)
		count += fcntl(i, F_GETFD) != -1;
	return count;
}

/* A program that takes the numbers of all open descriptors from 3 up for its own, and puts files of its own there. */
struct replaced {
	int count;
	int number[256];
	struct stat file[256];
};

/* How the numbers become the program's. */
enum how { BY_DUP2, BY_CLOSE_AND_OPEN };

static inline void replace_all(struct replaced *all, enum how how)
{
	char path[64];
	int i, file;
	all->count = 0;
	for (i = 3; i < NUMBERS; i++)
		if (fcntl(i, F_GETFD) != -1) {
			CHECK(all->count < 256);
			all->number[all->count++] = i;
			CHECK(how == BY_DUP2 || close(i) == 0);
		}
	CHECK(all->count > 0);
	for (i = 0; i < all->count; i++) {
		snprintf(path, sizeof path, "files.%d", i);
		CHECK((file = open(path_of(path), O_RDWR | O_CREAT | O_TRUNC, 0600)) >= 0);
		CHECK(write(file, "untouched", 9) == 9 && lseek(file, 0, SEEK_SET) == 0);
		if (file != all->number[i]) {
			CHECK(dup2(file, all->number[i]) == all->number[i] && close(file) == 0);
		}
		CHECK(fstat(all->number[i], &all->file[i]) == 0);
	}
}

/* They are what they were, and nobody has read from them or written into them. */
static inline void all_are_untouched(const struct replaced *all)
{
	struct stat found;
	char bytes[16];
	int i;
	for (i = 0; i < all->count; i++) {
		CHECK(fstat(all->number[i], &found) == 0);
		CHECK(found.st_dev == all->file[i].st_dev && found.st_ino == all->file[i].st_ino);
		CHECK(lseek(all->number[i], 0, SEEK_CUR) == 0);
		CHECK(pread(all->number[i], bytes, sizeof bytes, 0) == 9 && memcmp(bytes, "untouched", 9) == 0);
		CHECK(close(all->number[i]) == 0);
	}
}

struct test {
	const char *name;
	void (*run)(void);
};

/* Without an argument lists the tests; with a name runs that one. */
static inline int run_one(const struct test *tests, size_t tests_count, int count, char **arguments)
{
	size_t i;
	/* Nothing here may take for ever. */
	alarm(120);
	for (i = 0; i < tests_count; i++) {
		if (count == 1)
			printf("%s\n", tests[i].name);
		if (count == 2 && strcmp(arguments[1], tests[i].name) == 0) {
			tests[i].run();
			return 0;
		}
	}
	return count == 1 ? 0 : 2;
}

#endif
