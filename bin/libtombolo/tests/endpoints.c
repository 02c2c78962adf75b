/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What a C program sees of the endpoints of libtombolo. `endpoints NAME` runs the test of that name and ends with 0 if all was as it should
 * be. Run by calls.rs.
 */
#include "check.h"

/* Failures of what gives an address. */
#define FINDS_NOBODY(call, number) (errno = 0, CHECK((call) == TOMBOLO_NOBODY), CHECK(errno == (number)), CHECK(tombolo_error_text()[0] != 0))
#define ADDRESS(place, generation) ((tombolo_address)(generation) << 32 | (tombolo_address)(place))

/* Two endpoints that know each other, and where each is. */
static tombolo_handle one, other;
static tombolo_address at_one, at_other;

static void pair_of(uint32_t flags)
{
	struct tombolo_options options = options_of(flags);
	tombolo_handle ends[2];
	CHECK(tombolo_endpoint_pair(&options, ends) == 0);
	one = ends[0];
	other = ends[1];
	CHECK(one > 0 && other > 0 && one != other);
	at_one = tombolo_endpoint_address(one);
	at_other = tombolo_endpoint_address(other);
	CHECK(at_one != TOMBOLO_NOBODY && at_other != TOMBOLO_NOBODY && at_one != at_other);
}

static pthread_t begin(void *(*work)(void *), void *argument)
{
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, work, argument) == 0);
	return thread;
}

static void end(pthread_t thread)
{
	CHECK(pthread_join(thread, NULL) == 0);
}

static void moment(void)
{
	struct timespec length = {0, 50 * 1000 * 1000};
	nanosleep(&length, NULL);
}

/* Answers requests with their own bytes, and ends at the first notice. */
static void *serve(void *unused)
{
	char bytes[65536];
	struct tombolo_message message;
	(void)unused;
	for (;;) {
		ssize_t length = tombolo_endpoint_receive(other, TOMBOLO_ANYBODY, bytes, sizeof bytes, &message, TOMBOLO_FOREVER);
		CHECK(length >= 0);
		if (message.kind == TOMBOLO_NOTICES)
			return NULL;
		CHECK(message.kind == TOMBOLO_REQUEST && message.source == at_one);
		CHECK(tombolo_endpoint_reply(other, message.request, message.tag + 1, bytes, (size_t)length) == 0);
	}
}

static void test_messages(void)
{
	char bytes[16];
	struct tombolo_message message;
	pair_of(0);
	CHECK(TOMBOLO_PLACE(at_other) == 2 && TOMBOLO_GENERATION(at_other) == 1);
	CHECK(tombolo_endpoint_send_buffered(one, at_other, 7, "hello", 5, 0) == 0);
	CHECK(tombolo_endpoint_send_buffered(one, at_other, 8, NULL, 0, TOMBOLO_FOREVER) == 0);
	CHECK(tombolo_endpoint_flush(one) == 0);
	CHECK(tombolo_endpoint_receive(other, TOMBOLO_ANYBODY, bytes, sizeof bytes, &message, TOMBOLO_FOREVER) == 5);
	CHECK(memcmp(bytes, "hello", 5) == 0);
	CHECK(message.kind == TOMBOLO_MESSAGE && message.tag == 7 && message.source == at_one && message.length == 5);
	CHECK(message.request == 0 && message.notices == 0 && message.takes == 0 && message.reserved[0] == 0);
	CHECK(tombolo_endpoint_receive(other, at_one, bytes, sizeof bytes, &message, SECOND) == 0);
	CHECK(message.tag == 8 && message.length == 0);
	FAILS(tombolo_endpoint_receive(other, TOMBOLO_ANYBODY, bytes, sizeof bytes, &message, 0), EAGAIN);
	FAILS(tombolo_endpoint_receive(other, at_one, bytes, sizeof bytes, &message, SECOND / 100), ETIMEDOUT);
	CHECK(message.kind == 0 && message.source == TOMBOLO_NOBODY);
	/* Notices come together, and before messages. */
	CHECK(tombolo_endpoint_notify(one, at_other, 1) == 0);
	CHECK(tombolo_endpoint_notify(one, at_other, UINT64_C(1) << 63) == 0);
	CHECK(tombolo_endpoint_receive(other, TOMBOLO_ANYBODY, NULL, 0, &message, SECOND) == 0);
	CHECK(message.kind == TOMBOLO_NOTICES && message.notices == ((UINT64_C(1) << 63) | 1) && message.source == at_one);
}

static void test_too_short(void)
{
	char bytes[16];
	struct tombolo_message message;
	pair_of(0);
	CHECK(tombolo_endpoint_send_buffered(one, at_other, 1, "twelve bytes", 12, SECOND) == 0);
	CHECK(tombolo_endpoint_send_buffered(one, at_other, 2, "next", 4, SECOND) == 0);
	FAILS(tombolo_endpoint_receive(other, TOMBOLO_ANYBODY, bytes, 11, &message, SECOND), EMSGSIZE);
	CHECK(message.length == 12 && message.tag == 1 && message.source == at_one);
	CHECK(strstr(tombolo_error_text(), "12 bytes") != NULL);
	/* It stays, and comes first. */
	CHECK(tombolo_wait(other, TOMBOLO_READING, 0) == 1);
	FAILS(tombolo_endpoint_receive(other, at_one, bytes, 0, &message, 0), EMSGSIZE);
	CHECK(tombolo_endpoint_receive(other, at_one, bytes, 12, &message, 0) == 12);
	CHECK(memcmp(bytes, "twelve bytes", 12) == 0 && message.tag == 1);
	CHECK(tombolo_endpoint_receive(other, TOMBOLO_ANYBODY, bytes, 12, &message, 0) == 4 && message.tag == 2);
}

static void test_limits(void)
{
	static char bytes[1 << 20];
	struct tombolo_message message;
	ssize_t most;
	pair_of(0);
	CHECK((most = tombolo_endpoint_max_message(one, at_other)) > 1000 && most < (ssize_t)sizeof bytes);
	FAILS(tombolo_endpoint_send_buffered(one, at_other, 0, bytes, (size_t)most + 1, SECOND), EMSGSIZE);
	FAILS(tombolo_endpoint_send(one, at_other, 0, bytes, (size_t)most + 1, SECOND), EMSGSIZE);
	FAILS(tombolo_endpoint_call(one, at_other, 0, bytes, (size_t)most + 1, NULL, 0, NULL, SECOND), EMSGSIZE);
	memset(bytes, 7, sizeof bytes);
	CHECK(tombolo_endpoint_send_buffered(one, at_other, 0, bytes, (size_t)most, SECOND) == 0);
	memset(bytes, 0, sizeof bytes);
	CHECK(tombolo_endpoint_receive(other, at_one, bytes, sizeof bytes, &message, SECOND) == most);
	CHECK(bytes[0] == 7 && bytes[most - 1] == 7 && bytes[most] == 0);
	/* The other one receives nothing: what is on its way is bounded, and then the call waits for its time. */
	while (tombolo_endpoint_send_buffered(one, at_other, 0, bytes, (size_t)most, 0) == 0)
		;
	CHECK(errno == EAGAIN);
	FAILS(tombolo_endpoint_send_buffered(one, at_other, 0, bytes, (size_t)most, SECOND / 100), ETIMEDOUT);
}

static void *receive_one(void *tag)
{
	char bytes[64];
	struct tombolo_message message;
	moment();
	CHECK(tombolo_endpoint_receive(other, at_one, bytes, sizeof bytes, &message, 20 * SECOND) == 4);
	CHECK(message.kind == TOMBOLO_MESSAGE && message.tag == *(uint32_t *)tag);
	return NULL;
}

static void test_rendezvous(void)
{
	char bytes[8];
	struct tombolo_message message;
	uint32_t tag = 2;
	pthread_t receiver;
	pair_of(0);
	/* Nobody receives: it was withdrawn, and never comes. */
	FAILS(tombolo_endpoint_send(one, at_other, 1, "lost", 4, SECOND / 100), ETIMEDOUT);
	FAILS(tombolo_endpoint_send(one, at_other, 1, "lost", 4, 0), EAGAIN);
	receiver = begin(receive_one, &tag);
	CHECK(tombolo_endpoint_send(one, at_other, tag, "here", 4, 20 * SECOND) == 0);
	end(receiver);
	FAILS(tombolo_endpoint_receive(other, at_one, bytes, sizeof bytes, &message, 0), EAGAIN);
}

static void test_requests(void)
{
	char bytes[64];
	struct tombolo_message message, late;
	pthread_t server;
	pair_of(0);
	server = begin(serve, NULL);
	CHECK(tombolo_endpoint_call(one, at_other, 3, "question", 8, bytes, sizeof bytes, &message, 20 * SECOND) == 8);
	CHECK(memcmp(bytes, "question", 8) == 0);
	CHECK(message.kind == TOMBOLO_REPLY && message.tag == 4 && message.source == at_other && message.length == 8);
	CHECK(tombolo_endpoint_call(one, at_other, 3, NULL, 0, NULL, 0, NULL, TOMBOLO_FOREVER) == 0);
	CHECK(tombolo_endpoint_notify(one, at_other, 1) == 0);
	end(server);
	/* Not received in time, and never. */
	FAILS(tombolo_endpoint_call(one, at_other, 0, "x", 1, bytes, sizeof bytes, &message, SECOND / 100), ETIMEDOUT);
	FAILS(tombolo_endpoint_call(one, at_other, 0, "x", 1, bytes, sizeof bytes, &message, 0), EAGAIN);
	FAILS(tombolo_endpoint_receive(other, TOMBOLO_ANYBODY, bytes, sizeof bytes, &late, 0), EAGAIN);
	/* Numbers that are no requests. */
	FAILS(tombolo_endpoint_reply(other, 0, 0, NULL, 0), ECANCELED);
	FAILS(tombolo_endpoint_reply(other, 77, 0, NULL, 0), ECANCELED);
	FAILS(tombolo_endpoint_relay(other, UINT64_MAX, at_one, 0, NULL, 0), ECANCELED);
}

static void *ask_shortly(void *unused)
{
	char bytes[4];
	(void)unused;
	FAILS(tombolo_endpoint_call(one, at_other, 0, "x", 1, bytes, sizeof bytes, NULL, SECOND / 4), ETIME);
	return NULL;
}

static void test_late_replies(void)
{
	char bytes[64];
	struct tombolo_message message;
	pthread_t asker;
	pair_of(0);
	asker = begin(ask_shortly, NULL);
	CHECK(tombolo_endpoint_receive(other, TOMBOLO_ANYBODY, bytes, sizeof bytes, &message, 20 * SECOND) == 1);
	CHECK(message.kind == TOMBOLO_REQUEST && message.request != 0 && message.takes == 4);
	/* Too long for who asked: it still waits. */
	FAILS(tombolo_endpoint_reply(other, message.request, 0, "12345", 5), EMSGSIZE);
	/* Passed on to whom it came from, or to nobody: it still waits. */
	FAILS(tombolo_endpoint_relay(other, message.request, at_one, 0, "x", 1), EPERM);
	FAILS(tombolo_endpoint_relay(other, message.request, ADDRESS(9, 1), 0, "x", 1), ENOTCONN);
	end(asker);
	FAILS(tombolo_endpoint_reply(other, message.request, 0, "1234", 4), ECANCELED);
	FAILS(tombolo_endpoint_reply(other, message.request, 0, "1234", 4), ECANCELED);
}

static void *ask_back(void *unused)
{
	char bytes[4];
	struct tombolo_message message;
	(void)unused;
	if (tombolo_endpoint_call(other, at_one, 0, "x", 1, bytes, sizeof bytes, NULL, 20 * SECOND) == 0)
		return NULL;
	CHECK(errno == EDEADLK);
	CHECK(tombolo_endpoint_receive(other, at_one, bytes, sizeof bytes, &message, 20 * SECOND) == 1);
	return &at_one;
}

/* Each waits for the other: one is told, and the wait of the other goes on. */
static void test_deadlock(void)
{
	char bytes[4];
	struct tombolo_message message;
	pthread_t asker;
	void *told_it;
	int told_us = 0;
	pair_of(0);
	asker = begin(ask_back, NULL);
	if (tombolo_endpoint_send(one, at_other, 0, "y", 1, 20 * SECOND) == -1) {
		CHECK(errno == EDEADLK);
		told_us = 1;
		CHECK(tombolo_endpoint_receive(one, at_other, bytes, sizeof bytes, &message, 20 * SECOND) == 1);
		CHECK(tombolo_endpoint_reply(one, message.request, 0, NULL, 0) == 0);
	}
	CHECK(pthread_join(asker, &told_it) == 0);
	CHECK(told_us == (told_it == NULL));
}

static void test_nobody(void)
{
	char bytes[4];
	struct tombolo_message message;
	tombolo_address wrong[] = {ADDRESS(9, 1), ADDRESS(2, 7), TOMBOLO_NOBODY, 5, UINT64_MAX};
	int numbers[] = {ENOTCONN, ESTALE, EINVAL, EINVAL, ENOTCONN};
	size_t i;
	pair_of(0);
	for (i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		FAILS(tombolo_endpoint_send(one, wrong[i], 0, "x", 1, SECOND), numbers[i]);
		FAILS(tombolo_endpoint_send_buffered(one, wrong[i], 0, "x", 1, SECOND), numbers[i]);
		FAILS(tombolo_endpoint_call(one, wrong[i], 0, "x", 1, NULL, 0, NULL, SECOND), numbers[i]);
		FAILS(tombolo_endpoint_notify(one, wrong[i], 1), numbers[i]);
		FAILS(tombolo_endpoint_max_message(one, wrong[i]), numbers[i]);
		if (wrong[i] != TOMBOLO_ANYBODY)
			FAILS(tombolo_endpoint_receive(one, wrong[i], bytes, sizeof bytes, &message, SECOND), numbers[i]);
	}
	/* Oneself. */
	FAILS(tombolo_endpoint_send(one, at_one, 0, "x", 1, SECOND), EINVAL);
	FAILS(tombolo_endpoint_receive(one, at_one, bytes, sizeof bytes, &message, SECOND), EINVAL);
	/* The end of the other one: what it had sent is received, and then it is dead. */
	CHECK(tombolo_endpoint_send_buffered(other, at_one, 9, "last", 4, SECOND) == 0);
	CHECK(tombolo_endpoint_unbind(other) == 0);
	CHECK(tombolo_endpoint_receive(one, at_other, bytes, sizeof bytes, &message, SECOND) == 4 && message.tag == 9);
	FAILS(tombolo_endpoint_receive(one, at_other, bytes, sizeof bytes, &message, TOMBOLO_FOREVER), EPIPE);
	FAILS(tombolo_endpoint_send(one, at_other, 0, "x", 1, TOMBOLO_FOREVER), EPIPE);
	FAILS(tombolo_endpoint_call(one, at_other, 0, "x", 1, NULL, 0, NULL, TOMBOLO_FOREVER), EPIPE);
	FAILS(tombolo_endpoint_notify(one, at_other, 1), EPIPE);
	/* From anybody it waits for whoever may still come. */
	FAILS(tombolo_endpoint_receive(one, TOMBOLO_ANYBODY, bytes, sizeof bytes, &message, SECOND / 100), ETIMEDOUT);
	FAILS(tombolo_endpoint_unbind(other), EBADF);
}

static void test_wrong_handles(void)
{
	char bytes[4];
	struct tombolo_message message;
	struct tombolo_peer peers[2];
	struct tombolo_grant granted;
	tombolo_handle ends[2], wrong[5];
	int numbers[TOMBOLO_DESCRIPTORS];
	size_t i;
	pair_of(0);
	CHECK(tombolo_pair(NULL, ends) == 0);
	wrong[0] = 0;
	wrong[1] = -1;
	wrong[2] = INT64_MAX;
	wrong[3] = INT64_MIN;
	wrong[4] = ends[0];
	for (i = 0; i < 5; i++) {
		int number = i == 4 ? EINVAL : EBADF;
		tombolo_handle bad = wrong[i];
		FINDS_NOBODY(tombolo_endpoint_address(bad), number);
		FINDS_NOBODY(tombolo_endpoint_find(bad, "x", 0), number);
		FINDS_NOBODY(tombolo_endpoint_wait(bad, "x", 0), number);
		FAILS(tombolo_endpoint_name(bad, bytes, 4), number);
		FAILS(tombolo_endpoint_send(bad, at_other, 0, NULL, 0, 0), number);
		FAILS(tombolo_endpoint_send_buffered(bad, at_other, 0, NULL, 0, 0), number);
		FAILS(tombolo_endpoint_flush(bad), number);
		FAILS(tombolo_endpoint_give_up(bad), number);
		FAILS(tombolo_endpoint_call(bad, at_other, 0, NULL, 0, NULL, 0, NULL, 0), number);
		FAILS(tombolo_endpoint_receive(bad, TOMBOLO_ANYBODY, bytes, 4, &message, 0), number);
		FAILS(tombolo_endpoint_reply(bad, 1, 0, NULL, 0), number);
		FAILS(tombolo_endpoint_relay(bad, 1, at_other, 0, NULL, 0), number);
		FAILS(tombolo_endpoint_notify(bad, at_other, 1), number);
		FAILS(tombolo_endpoint_max_message(bad, at_other), number);
		FAILS(tombolo_endpoint_peers(bad, peers, 2), number);
		FAILS(tombolo_endpoint_peer(bad, at_other, peers), number);
		FAILS(tombolo_endpoint_buffer(bad, 4096, TOMBOLO_ACCESS_READ), number);
		FAILS(tombolo_endpoint_grant(bad, bad, at_other), number);
		FAILS(tombolo_endpoint_revoke(bad, bad, 1), number);
		FAILS(tombolo_endpoint_granted(bad, 1, &granted, 0), number);
		FAILS(tombolo_endpoint_copy_in(bad, 1, 0, bytes, 4, 0), number);
		FAILS(tombolo_endpoint_copy_out(bad, bytes, 4, 1, 0, 0), number);
		FAILS(tombolo_endpoint_copy(bad, 1, 0, 2, 0, 4, 0), number);
		FAILS(tombolo_endpoint_copy_to_own(bad, 1, 0, bad, 0, 4, 0), number);
		FAILS(tombolo_endpoint_copy_from_own(bad, bad, 0, 1, 0, 4, 0), number);
		FAILS(tombolo_buffer_read(bad, 0, bytes, 4), number);
		FAILS(tombolo_buffer_write(bad, 0, bytes, 4), number);
		FAILS(tombolo_endpoint_unbind(bad), number);
	}
	/* A channel's calls are not an endpoint's. */
	FAILS(tombolo_read(one, bytes, 4), EINVAL);
	FAILS(tombolo_write(one, bytes, 4), EINVAL);
	FAILS(tombolo_accept(one), EINVAL);
	FAILS(tombolo_wait(one, TOMBOLO_WRITING, 0), EINVAL);
	FAILS(tombolo_poll_descriptor(one, TOMBOLO_WRITING), EINVAL);
	FAILS(tombolo_mode(one), EINVAL);
	FAILS(tombolo_set_timeout(one, TOMBOLO_READING, 0), EINVAL);
	FAILS(tombolo_channel_descriptors(one, numbers), EINVAL);
	CHECK(tombolo_loan(one, 4) == NULL && errno == EINVAL);
	FAILS(tombolo_buffer_read(one, 0, bytes, 4), EINVAL);
	CHECK(tombolo_write(ends[0], "still", 5) == 5);
	CHECK(tombolo_endpoint_send_buffered(one, at_other, 0, "good", 4, 0) == 0);
}

static void test_wrong_arguments(void)
{
	char bytes[4];
	struct tombolo_message message;
	struct tombolo_options options = options_of(0);
	tombolo_handle ends[2];
	pair_of(0);
	FAILS(tombolo_endpoint_send(one, at_other, 0, NULL, 1, 0), EFAULT);
	FAILS(tombolo_endpoint_send(one, at_other, 0, bytes, SIZE_MAX, 0), EINVAL);
	FAILS(tombolo_endpoint_send(one, at_other, 0, bytes, 4, -2), EINVAL);
	FAILS(tombolo_endpoint_receive(one, TOMBOLO_ANYBODY, NULL, 4, &message, 0), EFAULT);
	FAILS(tombolo_endpoint_receive(one, TOMBOLO_ANYBODY, bytes, 4, NULL, 0), EFAULT);
	FAILS(tombolo_endpoint_receive(one, TOMBOLO_ANYBODY, bytes, 4, &message, INT64_MIN), EINVAL);
	FAILS(tombolo_endpoint_call(one, at_other, 0, bytes, 4, NULL, 4, NULL, 0), EFAULT);
	FAILS(tombolo_endpoint_peers(one, NULL, 1), EFAULT);
	FINDS_NOBODY(tombolo_endpoint_find(one, NULL, 0), EFAULT);
	FAILS(tombolo_endpoint_name(one, NULL, 4), EFAULT);
	FAILS(tombolo_endpoint_buffer(one, 4096, 0), EINVAL);
	FAILS(tombolo_endpoint_pair(NULL, NULL), EFAULT);
	options.size = 63;
	FAILS(tombolo_endpoint_pair(&options, ends), EINVAL);
	options = options_of(TOMBOLO_STREAM);
	FAILS(tombolo_endpoint_pair(&options, ends), EINVAL);
	options = options_of(0);
	options.ring_bytes = 4096;
	FAILS(tombolo_endpoint_pair(&options, ends), EINVAL);
	options = options_of(TOMBOLO_INTERRUPTIBLE);
	FAILS(tombolo_pair(&options, ends), EINVAL);
	CHECK(tombolo_endpoint_pair(&options, ends) == 0);
	/* Nothing came of all that. */
	FAILS(tombolo_endpoint_receive(other, TOMBOLO_ANYBODY, bytes, 4, &message, 0), EAGAIN);
}

static void test_peers(void)
{
	char text[8];
	struct tombolo_peer peers[3];
	pair_of(0);
	memset(peers, 7, sizeof peers);
	CHECK(tombolo_endpoint_peers(one, NULL, 0) == 1);
	CHECK(tombolo_endpoint_peers(one, peers, 3) == 1);
	CHECK(peers[0].address == at_other && peers[0].rights == 255 && peers[0].is_alive == 1);
	CHECK(peers[0].name[0] == 0 && peers[0].domain[0] == 0 && peers[0].reserved[3] == 0);
	CHECK(peers[1].rights == 0x07070707);
	CHECK(tombolo_endpoint_peer(one, at_other, &peers[1]) == 0 && memcmp(&peers[0], &peers[1], sizeof peers[0]) == 0);
	FAILS(tombolo_endpoint_peer(one, ADDRESS(9, 1), &peers[1]), ENOTCONN);
	FAILS(tombolo_endpoint_peer(one, ADDRESS(2, 2), &peers[1]), ESTALE);
	FAILS(tombolo_endpoint_peer(one, at_other, NULL), EFAULT);
	CHECK(tombolo_endpoint_name(one, text, sizeof text) == 0 && text[0] == 0);
	CHECK(tombolo_close(other) == 0);
	CHECK(tombolo_endpoint_peers(one, peers, 1) == 1 && peers[0].is_alive == 0);
}

static void test_polling(void)
{
	char bytes[8];
	struct tombolo_message message;
	int polled, round;
	pair_of(0);
	CHECK((polled = tombolo_endpoint_descriptor(one)) >= 0);
	CHECK(tombolo_poll_descriptor(one, TOMBOLO_READING) == polled);
	FAILS(tombolo_endpoint_receive(one, TOMBOLO_ANYBODY, bytes, 8, &message, 0), EAGAIN);
	CHECK(!is_readable(polled, 0));
	CHECK(tombolo_wait(one, TOMBOLO_READING, SECOND / 100) == 0);
	for (round = 0; round < 100; round++) {
		CHECK(!is_readable(polled, 0));
		if (round % 3 == 0)
			CHECK(tombolo_endpoint_notify(other, at_one, 1) == 0);
		else
			CHECK(tombolo_endpoint_send_buffered(other, at_one, 0, "x", 1, 0) == 0);
		CHECK(is_readable(polled, 20000));
		CHECK(tombolo_wait(one, TOMBOLO_READING, 20 * SECOND) == 1);
		CHECK(tombolo_endpoint_receive(one, TOMBOLO_ANYBODY, bytes, 8, &message, 0) == (round % 3 != 0));
		FAILS(tombolo_endpoint_receive(one, TOMBOLO_ANYBODY, bytes, 8, &message, 0), EAGAIN);
	}
	/* Of several it stays readable until the last. */
	CHECK(tombolo_endpoint_send_buffered(other, at_one, 0, "12345678", 8, 0) == 0);
	CHECK(tombolo_endpoint_send_buffered(other, at_one, 0, "y", 1, 0) == 0);
	CHECK(is_readable(polled, 20000));
	FAILS(tombolo_endpoint_receive(one, TOMBOLO_ANYBODY, bytes, 1, &message, 0), EMSGSIZE);
	CHECK(is_readable(polled, 0));
	CHECK(tombolo_endpoint_receive(one, TOMBOLO_ANYBODY, bytes, 8, &message, 0) == 8);
	CHECK(is_readable(polled, 20000));
	CHECK(tombolo_endpoint_receive(one, TOMBOLO_ANYBODY, bytes, 8, &message, 0) == 1);
	/* Other calls leave it right: a reply that arrives is taken by who asked. */
	FAILS(tombolo_endpoint_send(one, at_other, 0, "z", 1, SECOND / 100), ETIMEDOUT);
	FAILS(tombolo_endpoint_receive(one, TOMBOLO_ANYBODY, bytes, 8, &message, 0), EAGAIN);
	CHECK(!is_readable(polled, 0));
	CHECK(tombolo_endpoint_send_buffered(other, at_one, 0, "x", 1, 0) == 0);
	CHECK(is_readable(polled, 20000));
}

static void *wait_and_close(void *unused)
{
	(void)unused;
	moment();
	CHECK(tombolo_close(one) == 0);
	return NULL;
}

static void test_threads(void)
{
	char bytes[64];
	uint32_t number;
	struct tombolo_message message;
	pthread_t thread;
	int kind;
	pair_of(0);
	thread = begin(serve, NULL);
	for (number = 0; number < 3000; number++) {
		uint32_t answer = 0;
		CHECK(tombolo_endpoint_call(one, at_other, number, &number, 4, &answer, 4, &message, 20 * SECOND) == 4);
		CHECK(answer == number && message.tag == number + 1);
	}
	/* The server waits in a call: another thread is told so. */
	moment();
	FAILS(tombolo_endpoint_receive(other, TOMBOLO_ANYBODY, bytes, 64, &message, 0), EBUSY);
	CHECK(tombolo_endpoint_notify(one, at_other, 1) == 0);
	end(thread);
	/* Closed by another thread, whatever it waits in. */
	for (kind = 0; kind < 5; kind++) {
		pair_of(kind % 2 ? TOMBOLO_INTERRUPTIBLE : 0);
		thread = begin(wait_and_close, NULL);
		if (kind < 2)
			FAILS(tombolo_endpoint_receive(one, TOMBOLO_ANYBODY, bytes, 64, &message, TOMBOLO_FOREVER), EBADF);
		else if (kind < 4)
			FAILS(tombolo_endpoint_call(one, at_other, 0, "x", 1, bytes, 64, &message, TOMBOLO_FOREVER), EBADF);
		else
			FAILS(tombolo_endpoint_send(one, at_other, 0, "x", 1, TOMBOLO_FOREVER), EBADF);
		end(thread);
		FAILS(tombolo_endpoint_send(one, at_other, 0, "x", 1, 0), EBADF);
	}
}

/* A handle that threads use while it is closed and its place taken again. */
static tombolo_handle contested;
static volatile int contest_over;

static void *contest(void *unused)
{
	char bytes[64];
	struct tombolo_message message;
	(void)unused;
	while (!contest_over) {
		tombolo_handle now = __atomic_load_n(&contested, __ATOMIC_SEQ_CST);
		if (tombolo_endpoint_send_buffered(now, ADDRESS(2, 1), 0, "hello", 5, 0) < 0)
			CHECK(errno == EBADF || errno == EBUSY || errno == EPIPE || errno == EAGAIN);
		if (tombolo_endpoint_receive(now, TOMBOLO_ANYBODY, bytes, 64, &message, 1000) < 0)
			CHECK(errno == EBADF || errno == EBUSY || errno == ETIMEDOUT);
		if (tombolo_endpoint_descriptor(now) < 0)
			CHECK(errno == EBADF || errno == EBUSY);
	}
	return NULL;
}

static void test_contest(void)
{
	pthread_t threads[3];
	int i, round;
	/* No handle, also where the first place has been in use. */
	pair_of(0);
	FAILS(tombolo_endpoint_descriptor(0), EBADF);
	CHECK(tombolo_close(one) == 0 && tombolo_close(other) == 0);
	FAILS(tombolo_endpoint_descriptor(0), EBADF);
	for (i = 0; i < 3; i++)
		threads[i] = begin(contest, NULL);
	for (round = 0; round < 200; round++) {
		pair_of(0);
		__atomic_store_n(&contested, one, __ATOMIC_SEQ_CST);
		sched_yield();
		CHECK(tombolo_close(round % 2 ? one : other) == 0);
		CHECK(tombolo_close(round % 2 ? other : one) == 0);
	}
	contest_over = 1;
	for (i = 0; i < 3; i++)
		end(threads[i]);
}

static volatile int handled;

static void handle(int signal)
{
	(void)signal;
	handled++;
}

static void *signal_twice(void *thread)
{
	moment();
	CHECK(pthread_kill(*(pthread_t *)thread, SIGUSR1) == 0);
	moment();
	CHECK(pthread_kill(*(pthread_t *)thread, SIGUSR1) == 0);
	return NULL;
}

static void *answer_after_signals(void *unused)
{
	char bytes[8];
	struct tombolo_message message;
	(void)unused;
	CHECK(tombolo_endpoint_receive(other, TOMBOLO_ANYBODY, bytes, 8, &message, 20 * SECOND) == 4);
	while (handled < 2)
		moment();
	CHECK(tombolo_endpoint_reply(other, message.request, 0, "done", 4) == 0);
	/* It was received once. */
	FAILS(tombolo_endpoint_receive(other, TOMBOLO_ANYBODY, bytes, 8, &message, SECOND / 20), ETIMEDOUT);
	return NULL;
}

/* A signal ends a wait where that was asked for, and the same call goes on. */
static void test_signals(void)
{
	struct sigaction action;
	pthread_t here = pthread_self(), server, signaller;
	char bytes[8];
	struct tombolo_message message;
	ssize_t length;
	uint32_t flags;
	memset(&action, 0, sizeof action);
	action.sa_handler = handle;
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	for (flags = 0; flags <= TOMBOLO_INTERRUPTIBLE; flags += TOMBOLO_INTERRUPTIBLE) {
		int interrupted = 0;
		handled = 0;
		pair_of(flags);
		server = begin(answer_after_signals, NULL);
		signaller = begin(signal_twice, &here);
		while ((length = tombolo_endpoint_call(one, at_other, 0, "call", 4, bytes, 8, &message, 20 * SECOND)) == -1) {
			CHECK(errno == EINTR);
			interrupted++;
		}
		CHECK(length == 4 && memcmp(bytes, "done", 4) == 0 && message.source == at_other);
		CHECK(interrupted == (flags == 0 ? 0 : 2));
		end(signaller);
		end(server);
	}
	/* Another call gives up the one that was interrupted. */
	pair_of(TOMBOLO_INTERRUPTIBLE);
	handled = 0;
	signaller = begin(signal_twice, &here);
	FAILS(tombolo_endpoint_send(one, at_other, 1, "gone", 4, 20 * SECOND), EINTR);
	FAILS(tombolo_wait(one, TOMBOLO_READING, 20 * SECOND), EINTR);
	end(signaller);
	CHECK(tombolo_endpoint_send_buffered(one, at_other, 2, "here", 4, 0) == 0);
	CHECK(tombolo_endpoint_receive(other, TOMBOLO_ANYBODY, bytes, 8, &message, SECOND) == 4 && message.tag == 2);
	FAILS(tombolo_endpoint_receive(other, TOMBOLO_ANYBODY, bytes, 8, &message, 0), EAGAIN);
	/* What does not wait leaves it as it is, until it is given up. */
	handled = 0;
	signaller = begin(signal_twice, &here);
	FAILS(tombolo_endpoint_call(one, at_other, 3, "call", 4, bytes, 8, &message, 20 * SECOND), EINTR);
	CHECK(tombolo_endpoint_address(one) == at_one && tombolo_endpoint_notify(one, at_other, 1) == 0);
	CHECK(tombolo_endpoint_receive(other, at_one, bytes, 8, &message, SECOND) == 0 && message.kind == TOMBOLO_NOTICES);
	CHECK(tombolo_endpoint_receive(other, at_one, bytes, 8, &message, SECOND) == 4 && message.kind == TOMBOLO_REQUEST);
	CHECK(tombolo_endpoint_give_up(one) == 1 && tombolo_endpoint_give_up(one) == 0);
	FAILS(tombolo_endpoint_reply(other, message.request, 0, NULL, 0), ECANCELED);
	end(signaller);
}

static void test_fork(void)
{
	char bytes[8];
	struct tombolo_message message;
	int polled;
	pid_t child;
	pair_of(0);
	CHECK((polled = tombolo_endpoint_descriptor(one)) >= 0);
	FAILS(tombolo_endpoint_receive(one, TOMBOLO_ANYBODY, bytes, 8, &message, 0), EAGAIN);
	CHECK((child = fork()) >= 0);
	if (child == 0) {
		FAILS(tombolo_endpoint_send_buffered(one, at_other, 0, "x", 1, 0), ESTALE);
		FAILS(tombolo_endpoint_receive(one, TOMBOLO_ANYBODY, bytes, 8, &message, 0), ESTALE);
		FINDS_NOBODY(tombolo_endpoint_address(one), ESTALE);
		FAILS(tombolo_wait(one, TOMBOLO_READING, 0), ESTALE);
		CHECK(tombolo_close(one) == 0 && tombolo_close(other) == 0);
		FAILS(tombolo_close(one), EBADF);
		/* And it can make its own. */
		pair_of(0);
		CHECK(tombolo_endpoint_send_buffered(one, at_other, 0, "own", 3, 0) == 0);
		CHECK(tombolo_endpoint_receive(other, at_one, bytes, 8, &message, SECOND) == 3);
		_exit(0);
	}
	finish_child(child);
	/* The child closed nothing of ours, and woke nobody. */
	CHECK(!is_readable(polled, 0));
	CHECK(tombolo_endpoint_send_buffered(other, at_one, 0, "alive", 5, 0) == 0);
	CHECK(is_readable(polled, 20000));
	CHECK(tombolo_endpoint_receive(one, TOMBOLO_ANYBODY, bytes, 8, &message, SECOND) == 5);
}

static void test_leaks(void)
{
	char bytes[8];
	struct tombolo_message message;
	int before, round;
	pair_of(0);
	CHECK(tombolo_close(one) == 0 && tombolo_close(other) == 0);
	before = descriptors_open();
	for (round = 0; round < 50; round++) {
		pair_of(0);
		CHECK(tombolo_endpoint_descriptor(one) >= 0);
		CHECK(tombolo_endpoint_send_buffered(one, at_other, 0, "x", 1, 0) == 0);
		CHECK(tombolo_endpoint_receive(other, TOMBOLO_ANYBODY, bytes, 8, &message, SECOND) == 1);
		CHECK(tombolo_close(one) == 0 && tombolo_close(other) == 0);
	}
	CHECK(descriptors_open() == before);
}

/* Whatever a program calls with whatever numbers: an errno that the header names, and what is sound goes on. */
static void test_nonsense(void)
{
	static const int named[] = {EBADF,  EINVAL,  EFAULT,   EBUSY,    ENOTCONN,  ESTALE,   EPIPE,     EPERM,     EDEADLK,    ETIMEDOUT,
	                            EAGAIN, EMSGSIZE, ECANCELED, ENOBUFS, EOPNOTSUPP, ENOENT, ENAMETOOLONG, ERANGE, ECONNREFUSED};
	static char bytes[70000];
	struct tombolo_message message;
	struct tombolo_peer peer;
	struct tombolo_grant granted;
	uint64_t random = 88172645463325252u, request = 0;
	int round;
	pair_of(0);
	for (round = 0; round < 20000; round++) {
		tombolo_handle handles[4] = {one, other, 0, 0};
		tombolo_address addresses[6] = {at_one, at_other, TOMBOLO_NOBODY, ADDRESS(9, 1), ADDRESS(2, 9), 0};
		tombolo_handle handle;
		tombolo_address address;
		uint64_t lengths[4] = {0, 5, 4000, 65536}, length;
		ssize_t result = 0;
		size_t i;
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		handles[3] = (tombolo_handle)random;
		addresses[5] = random;
		handle = handles[random % 4];
		address = addresses[random / 4 % 6];
		length = lengths[random / 32 % 4];
		errno = 0;
		switch (random / 128 % 20) {
		case 0: result = tombolo_endpoint_send(handle, address, 1, bytes, length, 0); break;
		case 1: result = tombolo_endpoint_send_buffered(handle, address, 2, bytes, length, 0); break;
		case 2: result = tombolo_endpoint_call(handle, address, 3, bytes, length, bytes, length, &message, 0); break;
		case 3: result = tombolo_endpoint_receive(handle, address, bytes, length, &message, 0);
			if (result >= 0 && message.kind == TOMBOLO_REQUEST)
				request = message.request;
			break;
		case 4: result = tombolo_endpoint_reply(handle, random / 8192 % 2 ? request : random, 0, bytes, length); break;
		case 5: result = tombolo_endpoint_relay(handle, random / 8192 % 2 ? request : random, address, 0, bytes, length); break;
		case 6: result = tombolo_endpoint_notify(handle, address, random); break;
		case 7: result = tombolo_endpoint_max_message(handle, address); break;
		case 8: result = tombolo_endpoint_peer(handle, address, &peer); break;
		case 9: result = tombolo_endpoint_find(handle, "2.1", 0) == TOMBOLO_NOBODY ? -1 : 0; break;
		case 10: result = tombolo_endpoint_grant(handle, handles[random / 8192 % 4], address); break;
		case 11: result = tombolo_endpoint_granted(handle, (int64_t)random, &granted, 0); break;
		case 12: result = tombolo_endpoint_copy_in(handle, (int64_t)(random / 2), random, bytes, length, 0); break;
		case 13: result = tombolo_endpoint_copy(handle, 1, random, 2, random, random, 0); break;
		case 14: result = tombolo_endpoint_flush(handle); break;
		case 15: result = tombolo_endpoint_descriptor(handle); break;
		case 16: result = tombolo_wait(handle, (int)(random / 8192 % 3), 0); break;
		case 17: result = tombolo_endpoint_copy_to_own(handle, (int64_t)(random / 2), random, handles[random / 8192 % 4], random, length, 0); break;
		case 18: result = tombolo_endpoint_copy_from_own(handle, handles[random / 8192 % 4], random, 1, random, length, 0); break;
		default: result = tombolo_endpoint_buffer(handle, length, (int)(random / 8192 % 3)); break;
		}
		if (result != -1)
			continue;
		for (i = 0; i < sizeof named / sizeof *named && errno != named[i]; i++)
			;
		CHECK(i < sizeof named / sizeof *named);
	}
	/* Whatever has come is received, and they speak as ever. */
	while (tombolo_endpoint_receive(other, TOMBOLO_ANYBODY, bytes, sizeof bytes, &message, 0) >= 0)
		;
	CHECK(errno == EAGAIN);
	CHECK(tombolo_endpoint_send_buffered(one, at_other, 9, "sound", 5, SECOND) == 0);
	CHECK(tombolo_endpoint_receive(other, at_one, bytes, sizeof bytes, &message, SECOND) == 5 && message.tag == 9);
}

static void test_no_daemon(void)
{
	struct tombolo_options options = options_of(0);
	pair_of(0);
	FAILS(tombolo_endpoint_bind("planner", NULL), ECONNREFUSED);
	FAILS(tombolo_endpoint_bind(NULL, NULL), ECONNREFUSED);
	CHECK(strstr(tombolo_error_text(), "daemon") != NULL);
	FAILS(tombolo_endpoint_bind("\xff", NULL), EINVAL);
	FAILS(tombolo_endpoint_bind("", NULL), EINVAL);
	options.wait_ns = SECOND / 50;
	FAILS(tombolo_endpoint_bind("planner", &options), ETIMEDOUT);
	/* Who was paired by hand has nobody to ask. */
	FINDS_NOBODY(tombolo_endpoint_find(one, "planner", SECOND), ENOTCONN);
	FINDS_NOBODY(tombolo_endpoint_wait(one, "planner", SECOND), ENOTCONN);
	CHECK(tombolo_endpoint_find(one, "2.1", 0) == at_other);
	FAILS(tombolo_endpoint_buffer(one, 4096, TOMBOLO_ACCESS_READ), EOPNOTSUPP);
	FAILS(tombolo_endpoint_copy_in(one, 1, 0, NULL, 0, 0), EOPNOTSUPP);
	FAILS(tombolo_endpoint_copy_in(one, 0, 0, NULL, 0, 0), EINVAL);
	FAILS(tombolo_endpoint_revoke(one, one, 1), EINVAL);
}

static const struct test tests[] = {
	{"messages", test_messages},
	{"too_short", test_too_short},
	{"limits", test_limits},
	{"rendezvous", test_rendezvous},
	{"requests", test_requests},
	{"late_replies", test_late_replies},
	{"deadlock", test_deadlock},
	{"nobody", test_nobody},
	{"wrong_handles", test_wrong_handles},
	{"wrong_arguments", test_wrong_arguments},
	{"peers", test_peers},
	{"polling", test_polling},
	{"threads", test_threads},
	{"contest", test_contest},
	{"signals", test_signals},
	{"fork", test_fork},
	{"leaks", test_leaks},
	{"nonsense", test_nonsense},
	{"no_daemon", test_no_daemon},
};

int main(int count, char **arguments)
{
	return run_one(tests, sizeof tests / sizeof *tests, count, arguments);
}
