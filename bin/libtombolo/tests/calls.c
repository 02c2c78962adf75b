/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What a C program sees of libtombolo. `calls NAME` runs the test of that name and ends with 0 if all was as it should be. Run by
 * calls.rs, which has a folder made for it: its path is in FOLDER.
 */
#include "check.h"

static void pair_of(uint32_t flags, tombolo_handle ends[2])
{
	struct tombolo_options options = options_of(flags);
	CHECK(tombolo_pair(&options, ends) == 0);
	CHECK(ends[0] > 0 && ends[1] > 0 && ends[0] != ends[1]);
}

static void *wait_and_close(void *handle)
{
	struct timespec moment = {0, 50 * 1000 * 1000};
	nanosleep(&moment, NULL);
	CHECK(tombolo_close(*(tombolo_handle *)handle) == 0);
	return NULL;
}

static void test_messages(void)
{
	tombolo_handle ends[2];
	char buffer[64];
	struct iovec parts[3] = {{"one ", 4}, {NULL, 0}, {"two", 3}};
	struct iovec into[2] = {{buffer, 2}, {buffer + 10, 20}};
	pair_of(0, ends);
	CHECK(tombolo_mode(ends[0]) == TOMBOLO_MODE_MESSAGES);
	CHECK(tombolo_max_message(ends[0]) > 100000);
	CHECK(tombolo_write(ends[0], "hello", 5) == 5);
	CHECK(tombolo_write(ends[0], NULL, 0) == 0);
	CHECK(tombolo_writev(ends[0], parts, 3) == 7);
	CHECK(tombolo_next_length(ends[1]) == 5);
	CHECK(tombolo_read(ends[1], buffer, sizeof buffer) == 5 && memcmp(buffer, "hello", 5) == 0);
	CHECK(tombolo_next_length(ends[1]) == 0);
	CHECK(tombolo_read(ends[1], buffer, sizeof buffer) == 0);
	/* Too short: it stays, and the sentence says how long it is. */
	FAILS(tombolo_read(ends[1], buffer, 6), EMSGSIZE);
	CHECK(strstr(tombolo_error_text(), "7 bytes") != NULL);
	CHECK(tombolo_readv(ends[1], into, 2) == 7);
	CHECK(memcmp(buffer, "on", 2) == 0 && memcmp(buffer + 10, "e two", 5) == 0);
	/* And back. */
	CHECK(tombolo_write(ends[1], "back", 4) == 4);
	CHECK(tombolo_read(ends[0], buffer, sizeof buffer) == 4 && memcmp(buffer, "back", 4) == 0);
	/* What was sent before a close is read after it, and then the end. */
	CHECK(tombolo_write(ends[0], "last", 4) == 4);
	CHECK(tombolo_close(ends[0]) == 0);
	CHECK(tombolo_read(ends[1], buffer, sizeof buffer) == 4);
	CHECK(tombolo_read(ends[1], buffer, sizeof buffer) == 0);
	FAILS(tombolo_next_length(ends[1]), ENODATA);
	FAILS(tombolo_write(ends[1], "x", 1), EPIPE);
	CHECK(tombolo_close(ends[1]) == 0);
}

static void test_stream(void)
{
	tombolo_handle ends[2];
	char buffer[16];
	pair_of(TOMBOLO_STREAM, ends);
	CHECK(tombolo_mode(ends[1]) == TOMBOLO_MODE_STREAM);
	CHECK(tombolo_write(ends[0], "hello ", 6) == 6);
	CHECK(tombolo_write(ends[0], "world", 5) == 5);
	CHECK(tombolo_read(ends[1], buffer, 3) == 3 && memcmp(buffer, "hel", 3) == 0);
	CHECK(tombolo_read(ends[1], buffer, sizeof buffer) == 8 && memcmp(buffer, "lo world", 8) == 0);
	FAILS(tombolo_next_length(ends[1]), EOPNOTSUPP);
	CHECK(tombolo_loan(ends[1], 5) == NULL && errno == EOPNOTSUPP);
	/* One direction ends, the other goes on. */
	CHECK(tombolo_write(ends[0], "end", 3) == 3);
	CHECK(tombolo_finish(ends[0]) == 0);
	CHECK(tombolo_read(ends[1], buffer, sizeof buffer) == 3);
	CHECK(tombolo_read(ends[1], buffer, sizeof buffer) == 0);
	CHECK(tombolo_write(ends[1], "ok", 2) == 2);
	CHECK(tombolo_read(ends[0], buffer, sizeof buffer) == 2);
	FAILS(tombolo_write(ends[0], "x", 1), EPIPE);
	CHECK(tombolo_close(ends[0]) == 0 && tombolo_close(ends[1]) == 0);
	pair_of(0, ends);
	FAILS(tombolo_finish(ends[0]), EOPNOTSUPP);
}

static void test_in_place(void)
{
	tombolo_handle ends[2];
	char buffer[16];
	const void *bytes;
	char *loan;
	pair_of(0, ends);
	CHECK((loan = tombolo_loan(ends[0], 100)) != NULL);
	memcpy(loan, "in place", 8);
	/* One at a time. */
	CHECK(tombolo_loan(ends[0], 1) == NULL && errno == EBUSY);
	FAILS(tombolo_write(ends[0], "x", 1), EBUSY);
	FAILS(tombolo_commit(ends[0], 101), EMSGSIZE);
	CHECK(tombolo_commit(ends[0], 8) == 0);
	FAILS(tombolo_commit(ends[0], 0), EINVAL);
	FAILS(tombolo_cancel(ends[0]), EINVAL);
	CHECK(tombolo_loan(ends[0], 100) != NULL && tombolo_cancel(ends[0]) == 0);
	CHECK(tombolo_write(ends[0], "", 0) == 0);
	CHECK(tombolo_view(ends[1], &bytes) == 8 && memcmp(bytes, "in place", 8) == 0);
	FAILS(tombolo_read(ends[1], buffer, sizeof buffer), EBUSY);
	FAILS(tombolo_view(ends[1], &bytes), EBUSY);
	CHECK(tombolo_release(ends[1]) == 0);
	FAILS(tombolo_release(ends[1]), EINVAL);
	CHECK(tombolo_view(ends[1], &bytes) == 0 && bytes != NULL && tombolo_release(ends[1]) == 0);
	CHECK(tombolo_set_timeout(ends[1], TOMBOLO_READING, 0) == 0);
	FAILS(tombolo_view(ends[1], &bytes), EAGAIN);
	CHECK(tombolo_loan(ends[0], (size_t)tombolo_max_message(ends[0]) + 1) == NULL);
	/* Memory stays when the channel is closed under it, and comes back. */
	CHECK(tombolo_write(ends[0], "view", 4) == 4);
	CHECK((loan = tombolo_loan(ends[0], 10)) != NULL);
	CHECK(tombolo_view(ends[1], &bytes) == 4);
	CHECK(tombolo_close(ends[0]) == 0 && tombolo_close(ends[1]) == 0);
	memset(loan, 1, 10);
	CHECK(memcmp(bytes, "view", 4) == 0);
	FAILS(tombolo_commit(ends[0], 10), EPIPE);
	FAILS(tombolo_commit(ends[0], 10), EBADF);
	CHECK(tombolo_release(ends[1]) == 0);
	FAILS(tombolo_release(ends[1]), EBADF);
	/* The end is no message. */
	pair_of(0, ends);
	CHECK(tombolo_close(ends[0]) == 0);
	CHECK(tombolo_view(ends[1], &bytes) == 0 && bytes == NULL);
	CHECK(tombolo_loan(ends[1], 1) == NULL && errno == EPIPE);
}

/* Messages longer than a ring, if the other end takes them: at once, and in turns. */
static void test_long_messages(void)
{
	tombolo_handle ends[2];
	struct tombolo_options options = options_of(TOMBOLO_POPULATE);
	static char message[100000], got[100000];
	size_t i;
	int turns = 0, in;
	for (i = 0; i < sizeof message; i++)
		message[i] = (char)(i * 7 + i / 1000);
	options.ring_bytes = 4096;
	CHECK(tombolo_pair(&options, ends) == 0);
	FAILS(tombolo_write(ends[0], message, sizeof message), EMSGSIZE);
	CHECK(tombolo_max_message(ends[0]) < 4096);
	CHECK(tombolo_set_message_limit(ends[1], sizeof message) == 0);
	CHECK(tombolo_max_message(ends[0]) == sizeof message);
	CHECK(tombolo_set_timeout(ends[0], TOMBOLO_WRITING, 0) == 0);
	CHECK(tombolo_set_timeout(ends[1], TOMBOLO_READING, 0) == 0);
	CHECK((in = tombolo_poll_descriptor(ends[1], TOMBOLO_READING)) >= 0);
	while (tombolo_write(ends[0], message, sizeof message) < 0) {
		CHECK(errno == EAGAIN);
		FAILS(tombolo_read(ends[1], got, sizeof got), EAGAIN);
		CHECK(turns++ < 1000);
	}
	CHECK(turns > 5);
	CHECK(is_readable(in, 20000));
	CHECK(tombolo_next_length(ends[1]) == sizeof message);
	FAILS(tombolo_read(ends[1], got, 10), EMSGSIZE);
	CHECK(tombolo_read(ends[1], got, sizeof got) == sizeof got && memcmp(got, message, sizeof got) == 0);
	CHECK(!is_readable(in, 0));
	/* Given up in the midst, it never was. */
	FAILS(tombolo_write(ends[0], message, sizeof message), EAGAIN);
	FAILS(tombolo_read(ends[1], got, sizeof got), EAGAIN);
	CHECK(tombolo_cancel(ends[0]) == 0);
	FAILS(tombolo_cancel(ends[0]), EINVAL);
	CHECK(tombolo_write(ends[0], "short", 5) == 5);
	CHECK(tombolo_read(ends[1], got, sizeof got) == 5 && memcmp(got, "short", 5) == 0);
	/* A loan is of one piece. */
	CHECK(tombolo_loan(ends[0], sizeof message) == NULL && errno == EMSGSIZE);
}

/* Reads a message whose pieces may take more than one look. */
static ssize_t read_whole(tombolo_handle channel, void *into, size_t size)
{
	ssize_t length;
	int looks = 0;
	while ((length = tombolo_read(channel, into, size)) < 0)
		CHECK(errno == EAGAIN && looks++ < 100);
	return length;
}

/*
 * A program gave a long message up for which there was no room, and wrote the next one from the same buffer: what the other end got
 * began with the bytes of the first. And what was committed in between ended the channel when the long one went on.
 */
static void test_given_up(void)
{
	tombolo_handle ends[2];
	struct tombolo_options options = options_of(0);
	static char message[100000], got[100000];
	void *loan;
	int turns = 0;
	options.ring_bytes = 16384;
	CHECK(tombolo_pair(&options, ends) == 0);
	CHECK(tombolo_set_message_limit(ends[1], sizeof message) == 0);
	CHECK(tombolo_set_timeout(ends[0], TOMBOLO_WRITING, 0) == 0);
	CHECK(tombolo_set_timeout(ends[1], TOMBOLO_READING, 0) == 0);
	memset(message, 'A', sizeof message);
	FAILS(tombolo_write(ends[0], message, sizeof message), EAGAIN);
	memset(message, 'B', sizeof message);
	while (tombolo_write(ends[0], message, sizeof message) < 0) {
		CHECK(errno == EAGAIN);
		FAILS(tombolo_read(ends[1], got, sizeof got), EAGAIN);
		CHECK(turns++ < 1000);
	}
	CHECK(read_whole(ends[1], got, sizeof got) == sizeof got && memcmp(got, message, sizeof got) == 0);
	/* What is lent and committed in between gives it up as well. */
	FAILS(tombolo_write(ends[0], message, sizeof message), EAGAIN);
	FAILS(tombolo_read(ends[1], got, sizeof got), EAGAIN);
	CHECK((loan = tombolo_loan(ends[0], 5)) != NULL);
	memcpy(loan, "short", 5);
	CHECK(tombolo_commit(ends[0], 5) == 0);
	CHECK(read_whole(ends[1], got, sizeof got) == 5 && memcmp(got, "short", 5) == 0);
	for (turns = 0; tombolo_write(ends[0], message, sizeof message) < 0; turns++) {
		CHECK(errno == EAGAIN && turns < 1000);
		FAILS(tombolo_read(ends[1], got, sizeof got), EAGAIN);
	}
	CHECK(read_whole(ends[1], got, sizeof got) == sizeof got && memcmp(got, message, sizeof got) == 0);
	/* The same bytes from elsewhere are the same message. */
	FAILS(tombolo_write(ends[0], message, sizeof message), EAGAIN);
	memcpy(got, message, sizeof got);
	FAILS(tombolo_write(ends[0], got, sizeof got), EAGAIN);
	CHECK(tombolo_cancel(ends[0]) == 0);
}

static void test_batches(void)
{
	tombolo_handle ends[2];
	char buffer[16];
	int round;
	uint32_t flags;
	for (flags = 0; flags <= TOMBOLO_STREAM; flags++) {
		pair_of(flags | TOMBOLO_NONBLOCK, ends);
		CHECK(tombolo_set_batch(ends[0], 4096) == 0);
		for (round = 0; round < 5; round++)
			CHECK(tombolo_write(ends[0], "abc", 3) == 3);
		FAILS(tombolo_read(ends[1], buffer, sizeof buffer), EAGAIN);
		CHECK(tombolo_flush(ends[0]) == 0);
		CHECK(tombolo_read(ends[1], buffer, 3) == 3 && memcmp(buffer, "abc", 3) == 0);
		/* Closing flushes. */
		CHECK(tombolo_write(ends[0], "def", 3) == 3);
		CHECK(tombolo_close(ends[0]) == 0);
		for (round = 0; round < 4; round++)
			CHECK(tombolo_read(ends[1], buffer, 3) == 3 && memcmp(buffer, "abc", 3) == 0);
		CHECK(tombolo_read(ends[1], buffer, 3) == 3 && memcmp(buffer, "def", 3) == 0);
		CHECK(tombolo_read(ends[1], buffer, 3) == 0);
		CHECK(tombolo_close(ends[1]) == 0);
	}
}

static void test_time_outs(void)
{
	tombolo_handle ends[2];
	struct timespec before, after;
	char buffer[16];
	static char large[3000];
	struct tombolo_options options = options_of(0);
	options.ring_bytes = 8192;
	CHECK(tombolo_pair(&options, ends) == 0);
	CHECK(tombolo_set_timeout(ends[0], TOMBOLO_READING, SECOND / 50) == 0);
	clock_gettime(CLOCK_MONOTONIC, &before);
	FAILS(tombolo_read(ends[0], buffer, sizeof buffer), ETIMEDOUT);
	clock_gettime(CLOCK_MONOTONIC, &after);
	CHECK((after.tv_sec - before.tv_sec) * SECOND + (after.tv_nsec - before.tv_nsec) >= SECOND / 50);
	CHECK(tombolo_wait(ends[0], TOMBOLO_READING, 1000) == 0);
	CHECK(tombolo_wait(ends[0], TOMBOLO_READING, 0) == 0);
	CHECK(tombolo_wait(ends[0], TOMBOLO_WRITING, 0) == 1);
	CHECK(tombolo_set_timeout(ends[0], TOMBOLO_WRITING, SECOND / 100) == 0);
	while (tombolo_write(ends[0], large, sizeof large) > 0)
		;
	CHECK(errno == ETIMEDOUT);
	CHECK(tombolo_set_timeout(ends[0], TOMBOLO_WRITING, 0) == 0);
	FAILS(tombolo_write(ends[0], large, sizeof large), EAGAIN);
	CHECK(tombolo_wait(ends[0], TOMBOLO_WRITING, 1000) == 0);
	CHECK(tombolo_read(ends[1], large, sizeof large) == sizeof large);
	CHECK(tombolo_read(ends[1], large, sizeof large) == sizeof large);
	CHECK(tombolo_wait(ends[0], TOMBOLO_WRITING, 20 * SECOND) == 1);
	CHECK(tombolo_write(ends[0], large, sizeof large) == sizeof large);
	FAILS(tombolo_set_timeout(ends[0], TOMBOLO_READING, -7), EINVAL);
	FAILS(tombolo_set_timeout(ends[0], 7, 0), EINVAL);
	FAILS(tombolo_write(ends[0], large, 8192), EMSGSIZE);
}

static volatile sig_atomic_t alarms;

static void on_alarm(int number)
{
	alarms += number == SIGALRM;
}

static void test_signals(void)
{
	tombolo_handle ends[2];
	char buffer[16];
	struct sigaction action;
	struct itimerval timer = {{0, 20000}, {0, 20000}};
	memset(&action, 0, sizeof action);
	action.sa_handler = on_alarm;
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	pair_of(0, ends);
	CHECK(tombolo_set_timeout(ends[0], TOMBOLO_READING, SECOND / 5) == 0);
	CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
	/* A call goes on after a handler. */
	FAILS(tombolo_read(ends[0], buffer, sizeof buffer), ETIMEDOUT);
	CHECK(alarms > 0);
	/* tombolo_wait does not. */
	FAILS(tombolo_wait(ends[0], TOMBOLO_READING, 20 * SECOND), EINTR);
	/* And writing to nobody raises no SIGPIPE. */
	CHECK(tombolo_write(ends[1], "used", 4) == 4);
	CHECK(tombolo_close(ends[1]) == 0);
	FAILS(tombolo_write(ends[0], "x", 1), EPIPE);
}

static void test_polling(void)
{
	tombolo_handle ends[2];
	int in, out, epoll, round;
	char buffer[16];
	uint32_t flags;
	struct epoll_event event = {EPOLLIN, {0}};
	for (flags = 0; flags <= TOMBOLO_STREAM; flags++) {
		struct tombolo_options options = options_of(flags | TOMBOLO_NONBLOCK);
		static char large[1500];
		options.ring_bytes = 4096;
		CHECK(tombolo_pair(&options, ends) == 0);
		CHECK((in = tombolo_poll_descriptor(ends[1], TOMBOLO_READING)) >= 0);
		CHECK(tombolo_poll_descriptor(ends[1], TOMBOLO_READING) == in);
		CHECK(!is_readable(in, 0));
		for (round = 0; round < 3; round++) {
			/* One ring for several; readable until all is read, and not longer. */
			CHECK(tombolo_write(ends[0], "abc", 3) == 3 && tombolo_write(ends[0], "def", 3) == 3);
			CHECK(is_readable(in, 20000));
			CHECK(tombolo_read(ends[1], buffer, 3) == 3);
			CHECK(is_readable(in, 0));
			CHECK(tombolo_read(ends[1], buffer, 3) == 3);
			CHECK(!is_readable(in, 0));
			FAILS(tombolo_read(ends[1], buffer, 3), EAGAIN);
		}
		/* Waiting in calls does not unsettle it. */
		CHECK(tombolo_wait(ends[1], TOMBOLO_READING, 1000) == 0);
		CHECK(tombolo_write(ends[0], "abc", 3) == 3);
		CHECK(is_readable(in, 20000));
		CHECK(tombolo_wait(ends[1], TOMBOLO_READING, 1000) == 1);
		CHECK(is_readable(in, 0));
		CHECK(tombolo_read(ends[1], buffer, 3) == 3);
		/* Inside of another epoll descriptor. */
		CHECK((epoll = epoll_create1(EPOLL_CLOEXEC)) >= 0);
		CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, in, &event) == 0);
		CHECK(epoll_wait(epoll, &event, 1, 0) == 0);
		CHECK(tombolo_write(ends[0], "abc", 3) == 3);
		CHECK(epoll_wait(epoll, &event, 1, 20000) == 1);
		CHECK(tombolo_read(ends[1], buffer, 3) == 3);
		/* Room. */
		CHECK((out = tombolo_poll_descriptor(ends[0], TOMBOLO_WRITING)) >= 0 && out != in);
		CHECK(is_readable(out, 0));
		while (tombolo_write(ends[0], large, sizeof large) > 0)
			;
		CHECK(errno == EAGAIN);
		CHECK(!is_readable(out, 0));
		while (tombolo_read(ends[1], large, sizeof large) > 0)
			;
		CHECK(errno == EAGAIN);
		CHECK(is_readable(out, 20000));
		CHECK(tombolo_write(ends[0], large, sizeof large) > 0);
		CHECK(tombolo_read(ends[1], large, sizeof large) > 0);
		while (tombolo_read(ends[1], large, sizeof large) > 0)
			;
		/* The end. */
		CHECK(!is_readable(in, 0));
		CHECK(tombolo_close(ends[0]) == 0);
		CHECK(is_readable(in, 20000));
		CHECK(tombolo_read(ends[1], buffer, 3) == 0);
		CHECK(is_readable(in, 0));
		CHECK(close(epoll) == 0);
		CHECK(tombolo_close(ends[1]) == 0);
	}
}

static void test_wrong_handles(void)
{
	tombolo_handle ends[2], offer, again;
	tombolo_handle wrong[] = {0, -1, 1, 12345, INT64_MAX, INT64_MIN};
	const void *bytes;
	int numbers[TOMBOLO_DESCRIPTORS];
	char buffer[4];
	size_t i;
	for (i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		FAILS(tombolo_read(wrong[i], buffer, 4), EBADF);
		FAILS(tombolo_write(wrong[i], buffer, 4), EBADF);
		CHECK(tombolo_loan(wrong[i], 4) == NULL && errno == EBADF);
		FAILS(tombolo_commit(wrong[i], 4), EBADF);
		FAILS(tombolo_cancel(wrong[i]), EBADF);
		FAILS(tombolo_view(wrong[i], &bytes), EBADF);
		FAILS(tombolo_release(wrong[i]), EBADF);
		FAILS(tombolo_accept(wrong[i]), EBADF);
		FAILS(tombolo_wait(wrong[i], TOMBOLO_READING, 0), EBADF);
		FAILS(tombolo_poll_descriptor(wrong[i], TOMBOLO_READING), EBADF);
		FAILS(tombolo_channel_descriptors(wrong[i], numbers), EBADF);
		FAILS(tombolo_max_message(wrong[i]), EBADF);
		FAILS(tombolo_mode(wrong[i]), EBADF);
		FAILS(tombolo_peer(wrong[i], buffer, 4), EBADF);
		FAILS(tombolo_close(wrong[i]), EBADF);
	}
	pair_of(0, ends);
	CHECK(tombolo_close(ends[0]) == 0);
	FAILS(tombolo_close(ends[0]), EBADF);
	FAILS(tombolo_write(ends[0], "x", 1), EBADF);
	/* Its place may be taken again, its number not. */
	again = ends[0];
	CHECK(tombolo_close(ends[1]) == 0);
	pair_of(0, ends);
	CHECK(ends[0] != again && ends[1] != again);
	FAILS(tombolo_close(again), EBADF);
	/* An offer is no channel, and the other way round. */
	CHECK((offer = tombolo_offer(path_of("kinds"), NULL)) > 0);
	FAILS(tombolo_read(offer, buffer, 4), EINVAL);
	FAILS(tombolo_write(offer, buffer, 4), EINVAL);
	FAILS(tombolo_wait(offer, TOMBOLO_WRITING, 0), EINVAL);
	FAILS(tombolo_mode(offer), EINVAL);
	FAILS(tombolo_channel_descriptors(offer, numbers), EINVAL);
	FAILS(tombolo_accept(ends[0]), EINVAL);
	CHECK(tombolo_close(offer) == 0);
	FAILS(tombolo_accept(offer), EBADF);
}

static void test_wrong_arguments(void)
{
	tombolo_handle ends[2];
	struct tombolo_options options = options_of(0);
	struct iovec part = {NULL, 5};
	char buffer[4];
	pair_of(0, ends);
	FAILS(tombolo_read(ends[0], NULL, 4), EFAULT);
	FAILS(tombolo_write(ends[0], NULL, 4), EFAULT);
	FAILS(tombolo_write(ends[0], buffer, SIZE_MAX), EINVAL);
	FAILS(tombolo_writev(ends[0], &part, 1), EFAULT);
	FAILS(tombolo_writev(ends[0], NULL, 1), EFAULT);
	FAILS(tombolo_writev(ends[0], &part, -1), EINVAL);
	FAILS(tombolo_writev(ends[0], &part, 1025), EINVAL);
	FAILS(tombolo_view(ends[0], NULL), EFAULT);
	FAILS(tombolo_pair(NULL, NULL), EFAULT);
	FAILS(tombolo_open(NULL, NULL), EFAULT);
	FAILS(tombolo_offer("", NULL), EINVAL);
	FAILS(tombolo_from_descriptors(NULL, NULL), EFAULT);
	FAILS(tombolo_channel_descriptors(ends[0], NULL), EFAULT);
	options.ring_bytes = 5000;
	FAILS(tombolo_pair(&options, ends), EINVAL);
	FAILS(tombolo_offer(path_of("size"), &options), EINVAL);
	options = options_of(1u << 31);
	FAILS(tombolo_pair(&options, ends), EINVAL);
	options = options_of(0);
	options.size = 3;
	FAILS(tombolo_pair(&options, ends), EINVAL);
	CHECK(strstr(tombolo_error_text(), "sizeof") != NULL);
	options = options_of(0);
	options.reserved[2] = 1;
	FAILS(tombolo_open("x", &options), EINVAL);
}

static void test_names(void)
{
	static char path[512];
	tombolo_handle offer, channel, served;
	struct tombolo_options options = options_of(0);
	struct stat found;
	pid_t child;
	FAILS(tombolo_open(path_of("nobody"), NULL), ENOENT);
	CHECK(strstr(tombolo_error_text(), "nobody") != NULL);
	memset(path, 'x', 200);
	path[0] = '/';
	FAILS(tombolo_open(path, NULL), ENAMETOOLONG);
	FAILS(tombolo_offer(path, NULL), ENAMETOOLONG);
	memset(path, 'x', 300);
	FAILS(tombolo_offer(path, NULL), ENAMETOOLONG);
	FAILS(tombolo_offer("/nowhere/at/all", NULL), ENOENT);
	FAILS(tombolo_open("a-service", NULL), ECONNREFUSED);
	CHECK(strstr(tombolo_error_text(), "tombolo up") != NULL);
	FAILS(tombolo_offer("a-service", NULL), ECONNREFUSED);
	options.wait_ns = SECOND / 50;
	FAILS(tombolo_open(path_of("nobody"), &options), ETIMEDOUT);
	CHECK((offer = tombolo_offer(path_of("taken"), NULL)) > 0);
	CHECK(stat(path_of("taken"), &found) == 0 && (found.st_mode & 07777) == 0600);
	FAILS(tombolo_offer(path_of("taken"), NULL), EADDRINUSE);
	CHECK(tombolo_set_timeout(offer, TOMBOLO_READING, 0) == 0);
	FAILS(tombolo_accept(offer), EAGAIN);
	CHECK(tombolo_set_timeout(offer, TOMBOLO_READING, SECOND / 50) == 0);
	FAILS(tombolo_accept(offer), ETIMEDOUT);
	CHECK(tombolo_close(offer) == 0);
	CHECK(stat(path_of("taken"), &found) == -1 && errno == ENOENT);
	CHECK(close(open(path_of("file"), O_CREAT | O_WRONLY, 0600)) == 0);
	FAILS(tombolo_offer(path_of("file"), NULL), EEXIST);
	/* Two meet, and each knows who the other is; a stream is not messages. */
	CHECK((offer = tombolo_offer(path_of("meet"), NULL)) > 0);
	CHECK((child = fork()) >= 0);
	if (child == 0) {
		char text[64], expected[64];
		CHECK((channel = tombolo_open(path_of("meet"), NULL)) > 0);
		snprintf(expected, sizeof expected, "uid %d pid %d", (int)geteuid(), (int)getppid());
		CHECK(tombolo_peer(channel, NULL, 0) == (ssize_t)strlen(expected));
		CHECK(tombolo_peer(channel, text, sizeof text) > 0 && strcmp(text, expected) == 0);
		CHECK(tombolo_peer(channel, text, 4) > 0 && strcmp(text, "uid") == 0);
		CHECK(tombolo_write(channel, "hello", 5) == 5);
		options = options_of(TOMBOLO_STREAM);
		FAILS(tombolo_open(path_of("meet"), &options), EPROTOTYPE);
		_exit(0);
	}
	CHECK(tombolo_set_timeout(offer, TOMBOLO_READING, 20 * SECOND) == 0);
	CHECK((served = tombolo_accept(offer)) > 0);
	CHECK(tombolo_read(served, path, sizeof path) == 5);
	CHECK(tombolo_accept(offer) > 0);
	finish_child(child);
	CHECK(stat(path_of("meet"), &found) == 0);
}

static void test_offers(void)
{
	tombolo_handle offer, channels[3], opened[3];
	pthread_t thread;
	struct tombolo_options options = options_of(TOMBOLO_NONBLOCK);
	int i, polled;
	pid_t child;
	CHECK((offer = tombolo_offer(path_of("many"), &options)) > 0);
	CHECK((polled = tombolo_poll_descriptor(offer, TOMBOLO_READING)) >= 0);
	FAILS(tombolo_accept(offer), EAGAIN);
	CHECK(!is_readable(polled, 0));
	/* An opener may come before the offer is looked at; it is answered when it is. */
	CHECK((child = fork()) >= 0);
	if (child == 0) {
		char buffer[8];
		for (i = 0; i < 3; i++)
			CHECK((opened[i] = tombolo_open(path_of("many"), NULL)) > 0);
		for (i = 0; i < 3; i++)
			CHECK(tombolo_read(opened[i], buffer, sizeof buffer) == 1 && buffer[0] == '0' + i);
		_exit(0);
	}
	for (i = 0; i < 3; i++) {
		char number = (char)('0' + i);
		CHECK(is_readable(polled, 20000));
		CHECK(tombolo_wait(offer, TOMBOLO_READING, 0) == 1);
		CHECK((channels[i] = tombolo_accept(offer)) > 0);
		CHECK(tombolo_write(channels[i], &number, 1) == 1);
	}
	finish_child(child);
	/* NONBLOCK is the channels', too. */
	for (i = 0; i < 3; i++)
		CHECK(tombolo_read(channels[i], &options, sizeof options) <= 0);
	/* Who waits when it is closed hears of it. */
	CHECK(tombolo_set_timeout(offer, TOMBOLO_READING, TOMBOLO_FOREVER) == 0);
	CHECK(pthread_create(&thread, NULL, wait_and_close, &offer) == 0);
	FAILS(tombolo_accept(offer), EBADF);
	CHECK(pthread_join(thread, NULL) == 0);
	for (i = 0; i < 3; i++)
		CHECK(tombolo_close(channels[i]) == 0);
}

#define MANY 20000

static void *echo(void *handle)
{
	tombolo_handle channel = *(tombolo_handle *)handle;
	uint32_t number;
	while (tombolo_read(channel, &number, sizeof number) == sizeof number)
		CHECK(tombolo_write(channel, &number, sizeof number) == sizeof number);
	return NULL;
}

static void *send_numbers(void *handle)
{
	uint32_t number;
	for (number = 0; number < MANY; number++)
		CHECK(tombolo_write(*(tombolo_handle *)handle, &number, sizeof number) == sizeof number);
	return NULL;
}

static void test_threads(void)
{
	tombolo_handle ends[2];
	pthread_t echoer, sender, closer;
	uint32_t number, i;
	char buffer[8];
	struct timespec moment = {0, 10 * 1000 * 1000};
	pair_of(0, ends);
	CHECK(pthread_create(&echoer, NULL, echo, &ends[1]) == 0);
	CHECK(pthread_create(&sender, NULL, send_numbers, &ends[0]) == 0);
	for (i = 0; i < MANY; i++)
		CHECK(tombolo_read(ends[0], &number, sizeof number) == sizeof number && number == i);
	CHECK(pthread_join(sender, NULL) == 0);
	/* The echoer waits in a read: a second reader is told so, a writer is welcome. */
	nanosleep(&moment, NULL);
	FAILS(tombolo_read(ends[1], buffer, sizeof buffer), EBUSY);
	CHECK(tombolo_write(ends[1], "x", 1) == 1);
	CHECK(tombolo_read(ends[0], buffer, sizeof buffer) == 1);
	/* Closed by this thread, it ends the wait of that one. */
	CHECK(tombolo_close(ends[1]) == 0);
	CHECK(pthread_join(echoer, NULL) == 0);
	CHECK(tombolo_read(ends[0], buffer, sizeof buffer) == 0);
	CHECK(tombolo_close(ends[0]) == 0);
	pair_of(0, ends);
	CHECK(pthread_create(&closer, NULL, wait_and_close, &ends[0]) == 0);
	FAILS(tombolo_read(ends[0], buffer, sizeof buffer), EBADF);
	CHECK(pthread_join(closer, NULL) == 0);
}

/* A handle that threads use while it is closed and its place taken again. */
static tombolo_handle contested;
static volatile int contest_over;

static void *contest(void *unused)
{
	char buffer[64];
	(void)unused;
	while (!contest_over) {
		tombolo_handle now = __atomic_load_n(&contested, __ATOMIC_SEQ_CST);
		if (tombolo_write(now, "hello", 5) < 0)
			CHECK(errno == EBADF || errno == EBUSY || errno == EPIPE || errno == EAGAIN);
		if (tombolo_read(now, buffer, sizeof buffer) < 0)
			CHECK(errno == EBADF || errno == EBUSY || errno == EAGAIN);
		/* Another thread may have committed what was lent to this one. */
		if (tombolo_loan(now, 8) != NULL && tombolo_commit(now, 8) < 0)
			CHECK(errno == EPIPE || errno == EBADF || errno == EINVAL);
	}
	return NULL;
}

static void test_contest(void)
{
	pthread_t threads[3];
	int i, round;
	for (i = 0; i < 3; i++)
		CHECK(pthread_create(&threads[i], NULL, contest, NULL) == 0);
	for (round = 0; round < 200; round++) {
		tombolo_handle ends[2];
		pair_of(TOMBOLO_NONBLOCK, ends);
		__atomic_store_n(&contested, ends[0], __ATOMIC_SEQ_CST);
		sched_yield();
		CHECK(tombolo_close(ends[round % 2]) == 0);
		CHECK(tombolo_close(ends[1 - round % 2]) == 0);
		FAILS(tombolo_close(ends[0]), EBADF);
	}
	contest_over = 1;
	for (i = 0; i < 3; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
}

static void test_fork(void)
{
	tombolo_handle ends[2], used[2], offer;
	char buffer[16];
	const void *bytes;
	struct stat found;
	pid_t child;
	int polled;
	/* Each takes an end of a pair that nobody has used. */
	pair_of(0, ends);
	pair_of(0, used);
	CHECK(tombolo_write(used[0], "mine", 4) == 4 && tombolo_next_length(used[1]) == 4);
	CHECK((polled = tombolo_poll_descriptor(used[0], TOMBOLO_READING)) >= 0);
	CHECK((offer = tombolo_offer(path_of("forked"), NULL)) > 0);
	CHECK(tombolo_set_timeout(offer, TOMBOLO_READING, SECOND / 50) == 0);
	CHECK((child = fork()) >= 0);
	if (child == 0) {
		CHECK(tombolo_close(ends[0]) == 0);
		CHECK(tombolo_read(ends[1], buffer, sizeof buffer) == 5 && memcmp(buffer, "hello", 5) == 0);
		CHECK(tombolo_write(ends[1], "child", 5) == 5);
		/* What the parent uses is the parent's. */
		FAILS(tombolo_read(used[1], buffer, sizeof buffer), ESTALE);
		FAILS(tombolo_write(used[1], "x", 1), ESTALE);
		FAILS(tombolo_view(used[1], &bytes), ESTALE);
		FAILS(tombolo_write(used[0], "x", 1), ESTALE);
		CHECK(tombolo_loan(used[0], 1) == NULL && errno == ESTALE);
		FAILS(tombolo_read(used[0], buffer, sizeof buffer), ESTALE);
		FAILS(tombolo_accept(offer), ESTALE);
		CHECK(tombolo_close(offer) == 0);
		CHECK(tombolo_close(used[0]) == 0 && tombolo_close(used[1]) == 0);
		FAILS(tombolo_close(used[1]), EBADF);
		/* And it can make its own. */
		pair_of(0, used);
		CHECK(tombolo_write(used[0], "own", 3) == 3 && tombolo_read(used[1], buffer, 3) == 3);
		_exit(0);
	}
	CHECK(tombolo_close(ends[1]) == 0);
	CHECK(tombolo_write(ends[0], "hello", 5) == 5);
	CHECK(tombolo_read(ends[0], buffer, sizeof buffer) == 5 && memcmp(buffer, "child", 5) == 0);
	finish_child(child);
	CHECK(tombolo_read(ends[0], buffer, sizeof buffer) == 0);
	/* The child closed nothing of ours, and woke nobody. */
	CHECK(!is_readable(polled, 0));
	FAILS(tombolo_accept(offer), ETIMEDOUT);
	CHECK(stat(path_of("forked"), &found) == 0);
	CHECK(tombolo_read(used[1], buffer, sizeof buffer) == 4);
	CHECK(tombolo_write(used[1], "back", 4) == 4 && tombolo_read(used[0], buffer, sizeof buffer) == 4);
}

/*
 * A daemon closes everything that is open and opens its files, as daemons do, by itself or in a child, while the library holds
 * channels. Those end; the files are the program's, and nobody reads them, writes into them, or closes them.
 */
static void lose_descriptors(enum how how)
{
	struct replaced all;
	tombolo_handle used[2], unused[2], streams[2], endpoints[2], offer;
	char buffer[16];
	pair_of(0, used);
	pair_of(0, unused);
	pair_of(TOMBOLO_STREAM, streams);
	CHECK(tombolo_endpoint_pair(NULL, endpoints) == 0);
	CHECK(tombolo_write(used[0], "hello", 5) == 5 && tombolo_next_length(used[1]) == 5);
	CHECK(tombolo_poll_descriptor(used[0], TOMBOLO_READING) >= 0);
	CHECK(tombolo_poll_descriptor(endpoints[0], TOMBOLO_READING) >= 0);
	CHECK(tombolo_write(streams[0], "hello", 5) == 5);
	CHECK((offer = tombolo_offer(path_of("lost"), NULL)) > 0);
	replace_all(&all, how);
	/* What lies in memory can still be read. What has to wait or to wake fails, or its time is over; nothing hangs. */
	CHECK(tombolo_set_timeout(used[0], TOMBOLO_READING, SECOND / 20) == 0);
	CHECK(tombolo_set_timeout(used[1], TOMBOLO_READING, SECOND / 20) == 0);
	CHECK(tombolo_read(used[1], buffer, sizeof buffer) == 5);
	CHECK(tombolo_read(used[1], buffer, sizeof buffer) <= 0);
	CHECK(tombolo_read(used[0], buffer, sizeof buffer) <= 0);
	CHECK(tombolo_wait(used[0], TOMBOLO_READING, SECOND / 20) <= 1);
	CHECK(tombolo_wait(endpoints[0], TOMBOLO_READING, SECOND / 20) <= 1);
	FAILS(tombolo_write(unused[0], "x", 1), EBADF);
	CHECK(tombolo_set_timeout(offer, TOMBOLO_READING, SECOND / 20) == 0);
	CHECK(tombolo_accept(offer) == -1);
	CHECK(tombolo_close(offer) == 0);
	CHECK(tombolo_close(used[0]) == 0 && tombolo_close(used[1]) == 0);
	CHECK(tombolo_close(unused[0]) == 0 && tombolo_close(unused[1]) == 0);
	CHECK(tombolo_close(streams[0]) == 0 && tombolo_close(streams[1]) == 0);
	CHECK(tombolo_close(endpoints[0]) == 0 && tombolo_close(endpoints[1]) == 0);
	all_are_untouched(&all);
	/* And there can be others. */
	pair_of(0, used);
	CHECK(tombolo_write(used[0], "hello", 5) == 5);
	CHECK(tombolo_read(used[1], buffer, sizeof buffer) == 5);
	CHECK(tombolo_close(used[0]) == 0 && tombolo_close(used[1]) == 0);
}

static void test_lost_descriptors(void)
{
	struct replaced all;
	tombolo_handle used[2];
	char buffer[16];
	pid_t child;
	lose_descriptors(BY_DUP2);
	lose_descriptors(BY_CLOSE_AND_OPEN);
	pair_of(0, used);
	CHECK(tombolo_write(used[0], "hello", 5) == 5 && tombolo_next_length(used[1]) == 5);
	CHECK((child = fork()) >= 0);
	if (child == 0) {
		replace_all(&all, BY_DUP2);
		FAILS(tombolo_write(used[0], "x", 1), ESTALE);
		CHECK(tombolo_close(used[0]) == 0 && tombolo_close(used[1]) == 0);
		all_are_untouched(&all);
		_exit(0);
	}
	finish_child(child);
	CHECK(tombolo_read(used[1], buffer, sizeof buffer) == 5);
	CHECK(tombolo_close(used[0]) == 0 && tombolo_close(used[1]) == 0);
}

static void test_descriptors(void)
{
	tombolo_handle ends[2], again;
	struct tombolo_options stream = options_of(TOMBOLO_STREAM);
	int numbers[TOMBOLO_DESCRIPTORS], wrong[TOMBOLO_DESCRIPTORS], i;
	char buffer[16];
	pair_of(0, ends);
	CHECK(tombolo_channel_descriptors(ends[0], numbers) == 0);
	FAILS(tombolo_close(ends[0]), EBADF);
	for (i = 0; i < TOMBOLO_DESCRIPTORS; i++)
		CHECK(fcntl(numbers[i], F_GETFD) == FD_CLOEXEC);
	/* What is refused stays the caller's. */
	FAILS(tombolo_from_descriptors(numbers, &stream), EPROTOTYPE);
	for (i = 0; i < TOMBOLO_DESCRIPTORS; i++)
		wrong[i] = numbers[TOMBOLO_DESCRIPTORS - 1 - i];
	FAILS(tombolo_from_descriptors(wrong, NULL), EPROTO);
	wrong[2] = -1;
	FAILS(tombolo_from_descriptors(wrong, NULL), EBADF);
	CHECK((again = tombolo_from_descriptors(numbers, NULL)) > 0);
	CHECK(fcntl(numbers[0], F_GETFD) == -1);
	CHECK(tombolo_write(again, "hello", 5) == 5);
	CHECK(tombolo_read(ends[1], buffer, sizeof buffer) == 5);
	FAILS(tombolo_channel_descriptors(again, numbers), EALREADY);
	CHECK(tombolo_close(again) == 0);
	CHECK(tombolo_read(ends[1], buffer, sizeof buffer) == 0);
}

/* A program at the other end is killed: what it sent is read, then the end; and writing fails. */
static void test_death(void)
{
	tombolo_handle ends[2];
	char buffer[16];
	uint32_t flags;
	for (flags = 0; flags <= TOMBOLO_STREAM; flags++) {
		pid_t child;
		int status, polled;
		pair_of(flags, ends);
		CHECK((child = fork()) >= 0);
		if (child == 0) {
			CHECK(tombolo_close(ends[0]) == 0);
			CHECK(tombolo_write(ends[1], "last", 4) == 4);
			tombolo_read(ends[1], buffer, sizeof buffer);
			_exit(1);
		}
		CHECK(tombolo_close(ends[1]) == 0);
		CHECK((polled = tombolo_poll_descriptor(ends[0], TOMBOLO_READING)) >= 0);
		CHECK(is_readable(polled, 20000));
		CHECK(kill(child, SIGKILL) == 0);
		CHECK(tombolo_read(ends[0], buffer, sizeof buffer) == 4 && memcmp(buffer, "last", 4) == 0);
		CHECK(tombolo_read(ends[0], buffer, sizeof buffer) == 0);
		CHECK(is_readable(polled, 20000));
		while (tombolo_write(ends[0], "anybody?", 8) > 0)
			;
		CHECK(errno == EPIPE);
		CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		CHECK(tombolo_close(ends[0]) == 0);
	}
}

static void test_leaks(void)
{
	tombolo_handle ends[2], offer;
	char buffer[4];
	int before, round;
	pair_of(0, ends);
	CHECK(tombolo_close(ends[0]) == 0 && tombolo_close(ends[1]) == 0);
	before = descriptors_open();
	for (round = 0; round < 50; round++) {
		pair_of((uint32_t)round % 2 ? TOMBOLO_STREAM : 0, ends);
		CHECK(tombolo_write(ends[0], "x", 1) == 1 && tombolo_read(ends[1], buffer, 4) == 1);
		CHECK(tombolo_poll_descriptor(ends[0], TOMBOLO_READING) >= 0);
		CHECK(tombolo_poll_descriptor(ends[0], TOMBOLO_WRITING) >= 0);
		CHECK((offer = tombolo_offer(path_of("leak"), NULL)) > 0);
		CHECK(tombolo_poll_descriptor(offer, TOMBOLO_READING) >= 0);
		CHECK(tombolo_close(offer) == 0);
		CHECK(tombolo_close(ends[0]) == 0 && tombolo_close(ends[1]) == 0);
	}
	CHECK(descriptors_open() == before);
}

static void test_sentences(void)
{
	CHECK(strcmp(tombolo_error_text(), "") == 0);
	FAILS(tombolo_close(77), EBADF);
	CHECK(strcmp(tombolo_error_text(), "the handle 77 is closed, or never was one") == 0);
}

static const struct test tests[] = {
	{"messages", test_messages},
	{"stream", test_stream},
	{"in_place", test_in_place},
	{"long_messages", test_long_messages},
	{"given_up", test_given_up},
	{"batches", test_batches},
	{"time_outs", test_time_outs},
	{"signals", test_signals},
	{"polling", test_polling},
	{"wrong_handles", test_wrong_handles},
	{"wrong_arguments", test_wrong_arguments},
	{"names", test_names},
	{"offers", test_offers},
	{"threads", test_threads},
	{"contest", test_contest},
	{"fork", test_fork},
	{"lost_descriptors", test_lost_descriptors},
	{"descriptors", test_descriptors},
	{"death", test_death},
	{"leaks", test_leaks},
	{"sentences", test_sentences},
};

int main(int count, char **arguments)
{
	return run_one(tests, sizeof tests / sizeof *tests, count, arguments);
}
