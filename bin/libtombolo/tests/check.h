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
	for (i = 0; i < 256; i++)
		count += fcntl(i, F_GETFD) != -1;
	return count;
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
