/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What a C program sees of endpoints that are bound at a daemon: `bound NAME` runs the test of that name. Run by daemon.rs, which has a
 * stand-in for the daemon that allows everything but what concerns the name `wall`.
 */
#include "check.h"

#define FINDS_NOBODY(call, number) (errno = 0, CHECK((call) == TOMBOLO_NOBODY), CHECK(errno == (number)), CHECK(tombolo_error_text()[0] != 0))

static tombolo_handle bound(const char *name)
{
	tombolo_handle endpoint = tombolo_endpoint_bind(name, NULL);
	CHECK(endpoint > 0);
	return endpoint;
}

static void test_names(void)
{
	char text[64];
	struct tombolo_peer peer;
	struct tombolo_message message;
	struct tombolo_options options = options_of(0);
	tombolo_handle planner = bound("planner"), nameless = bound(NULL);
	tombolo_address there;
	CHECK(tombolo_endpoint_name(planner, text, sizeof text) == 7 && strcmp(text, "planner") == 0);
	CHECK(tombolo_endpoint_name(planner, text, 4) == 7 && strcmp(text, "pla") == 0);
	CHECK(tombolo_endpoint_name(nameless, text, sizeof text) == 0 && text[0] == 0);
	CHECK((there = tombolo_endpoint_find(nameless, "planner", 0)) == tombolo_endpoint_address(planner));
	CHECK(tombolo_endpoint_find(nameless, "planner", SECOND) == there);
	CHECK(tombolo_endpoint_wait(nameless, "planner", 0) == there);
	/* As people write it. */
	snprintf(text, sizeof text, "%u.%u", TOMBOLO_PLACE(there), TOMBOLO_GENERATION(there));
	CHECK(tombolo_endpoint_find(nameless, text, 0) == there);
	CHECK(tombolo_endpoint_peers(nameless, &peer, 1) == 1);
	CHECK(strcmp(peer.name, "planner") == 0 && strcmp(peer.domain, "a") == 0 && peer.is_alive && peer.address == there);
	CHECK(tombolo_endpoint_send_buffered(nameless, there, 3, "hello", 5, SECOND) == 0);
	CHECK(tombolo_endpoint_receive(planner, TOMBOLO_ANYBODY, text, sizeof text, &message, 20 * SECOND) == 5);
	CHECK(message.source == tombolo_endpoint_address(nameless) && message.tag == 3);
	/* What is said of names that lead nowhere. */
	FAILS(tombolo_endpoint_bind("planner", NULL), EADDRINUSE);
	options.wait_ns = SECOND / 20;
	FAILS(tombolo_endpoint_bind("planner", &options), ETIMEDOUT);
	FAILS(tombolo_endpoint_bind("unknown", NULL), ENOENT);
	FINDS_NOBODY(tombolo_endpoint_find(planner, "unknown", 0), ENOENT);
	FINDS_NOBODY(tombolo_endpoint_find(planner, "motor", 0), ENOTCONN);
	FINDS_NOBODY(tombolo_endpoint_find(planner, "planner", 0), EINVAL);
	FINDS_NOBODY(tombolo_endpoint_find(planner, "", 0), EINVAL);
	FINDS_NOBODY(tombolo_endpoint_find(planner, "\xff", 0), EINVAL);
	FINDS_NOBODY(tombolo_endpoint_wait(planner, "motor", SECOND / 20), ETIMEDOUT);
	FINDS_NOBODY(tombolo_endpoint_wait(planner, "motor", 0), ENOTCONN);
}

static void test_refused(void)
{
	tombolo_handle planner = bound("planner"), wall = bound("wall");
	FINDS_NOBODY(tombolo_endpoint_find(planner, "wall", 0), EPERM);
	FINDS_NOBODY(tombolo_endpoint_wait(wall, "planner", SECOND), EPERM);
	CHECK(tombolo_close(wall) == 0);
}

static void *bind_in_a_moment(void *handle)
{
	struct timespec moment = {0, 50 * 1000 * 1000};
	nanosleep(&moment, NULL);
	*(tombolo_handle *)handle = bound("motor");
	return NULL;
}

static void test_waits(void)
{
	pthread_t binder;
	tombolo_handle planner = bound("planner"), motor = -1;
	tombolo_address there;
	struct tombolo_message message;
	CHECK(pthread_create(&binder, NULL, bind_in_a_moment, &motor) == 0);
	CHECK((there = tombolo_endpoint_wait(planner, "motor", 20 * SECOND)) != TOMBOLO_NOBODY);
	CHECK(pthread_join(binder, NULL) == 0);
	CHECK(there == tombolo_endpoint_address(motor));
	/* The next one has another generation, and the old one is dead. */
	CHECK(tombolo_endpoint_unbind(motor) == 0);
	FAILS(tombolo_endpoint_send(planner, there, 0, "x", 1, 20 * SECOND), EPIPE);
	FAILS(tombolo_endpoint_receive(planner, there, NULL, 0, &message, TOMBOLO_FOREVER), EPIPE);
	CHECK((motor = bound("motor")) > 0);
	FINDS_NOBODY(tombolo_endpoint_find(planner, "1000.1", 0), ENOTCONN);
	{
		char old[32];
		snprintf(old, sizeof old, "%u.%u", TOMBOLO_PLACE(there), TOMBOLO_GENERATION(there));
		FINDS_NOBODY(tombolo_endpoint_find(planner, old, 0), ESTALE);
	}
	CHECK(tombolo_endpoint_find(planner, "motor", 0) == tombolo_endpoint_address(motor));
	CHECK(TOMBOLO_PLACE(there) == TOMBOLO_PLACE(tombolo_endpoint_address(motor)));
	FAILS(tombolo_endpoint_send(planner, there, 0, "x", 1, SECOND), ESTALE);
}

static volatile int handled;

static void handle(int signal)
{
	(void)signal;
	handled++;
}

/* A wait for a name is interrupted, and goes on; another name is another wait. */
static void test_interrupted_waits(void)
{
	struct tombolo_options options = options_of(TOMBOLO_INTERRUPTIBLE);
	struct sigaction action;
	struct itimerval often = {{0, 20000}, {0, 20000}}, never = {{0, 0}, {0, 0}};
	tombolo_handle planner = tombolo_endpoint_bind("planner", &options), motor;
	char whom[16] = "motor";
	tombolo_address there;
	memset(&action, 0, sizeof action);
	action.sa_handler = handle;
	CHECK(planner > 0 && sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
	FINDS_NOBODY(tombolo_endpoint_wait(planner, whom, 20 * SECOND), EINTR);
	FINDS_NOBODY(tombolo_endpoint_wait(planner, whom, 20 * SECOND), EINTR);
	strcpy(whom, "camera");
	FINDS_NOBODY(tombolo_endpoint_wait(planner, whom, 20 * SECOND), EINTR);
	CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
	motor = bound("motor");
	strcpy(whom, "motor");
	CHECK((there = tombolo_endpoint_wait(planner, whom, 20 * SECOND)) == tombolo_endpoint_address(motor));
	CHECK(handled >= 3);
}

/* A program that is killed is dead to those who speak to it, whatever it was doing. */
static void test_death(void)
{
	tombolo_handle planner = bound("planner");
	char bytes[64];
	int round;
	for (round = 0; round < 8; round++) {
		struct tombolo_message message;
		tombolo_address there;
		pid_t child;
		int status;
		CHECK((child = fork()) >= 0);
		if (child == 0) {
			tombolo_handle motor = bound("motor");
			tombolo_address caller;
			CHECK(tombolo_close(planner) == 0);
			CHECK((caller = tombolo_endpoint_wait(motor, "planner", 20 * SECOND)) != TOMBOLO_NOBODY);
			CHECK(tombolo_endpoint_send_buffered(motor, caller, 1, "here", 4, SECOND) == 0);
			/* To wait for who waits for an answer would be a deadlock, and told. */
			if (round % 4 >= 2)
				caller = TOMBOLO_ANYBODY;
			while (tombolo_endpoint_receive(motor, caller, bytes, 64, &message, 20 * SECOND) >= 0)
				;
			_exit(1);
		}
		CHECK(tombolo_endpoint_receive(planner, TOMBOLO_ANYBODY, bytes, 64, &message, 20 * SECOND) == 4);
		there = message.source;
		if (round % 4 < 2)
			CHECK(kill(child, SIGKILL) == 0);
		/* Asked: it is received, and never answered. */
		if (round % 4 >= 2)
			FAILS(tombolo_endpoint_call(planner, there, 0, "x", 1, bytes, 64, &message, SECOND / 10), ETIME);
		if (round % 4 >= 2)
			CHECK(kill(child, SIGKILL) == 0);
		CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
		FAILS(tombolo_endpoint_call(planner, there, 0, "x", 1, bytes, 64, &message, TOMBOLO_FOREVER), EPIPE);
		FAILS(tombolo_endpoint_receive(planner, there, bytes, 64, &message, TOMBOLO_FOREVER), EPIPE);
	}
}

/* A child has no endpoint of its parent's, and ends none. */
static void test_forks(void)
{
	tombolo_handle planner = bound("planner"), motor = bound("motor");
	tombolo_address there = tombolo_endpoint_find(planner, "motor", 0);
	char bytes[8];
	struct tombolo_message message;
	pid_t child;
	CHECK(there != TOMBOLO_NOBODY && (child = fork()) >= 0);
	if (child == 0) {
		FAILS(tombolo_endpoint_send(planner, there, 0, "x", 1, SECOND), ESTALE);
		FINDS_NOBODY(tombolo_endpoint_find(planner, "motor", 0), ESTALE);
		CHECK(tombolo_endpoint_unbind(planner) == 0 && tombolo_close(motor) == 0);
		CHECK(tombolo_close(bound("camera")) == 0);
		_exit(0);
	}
	finish_child(child);
	FAILS(tombolo_endpoint_bind("planner", NULL), EADDRINUSE);
	CHECK(tombolo_endpoint_send_buffered(planner, there, 0, "alive", 5, 0) == 0);
	CHECK(tombolo_endpoint_receive(motor, TOMBOLO_ANYBODY, bytes, 8, &message, SECOND) == 5);
}

static void *pass_on(void *handle)
{
	tombolo_handle planner = *(tombolo_handle *)handle;
	char bytes[64];
	struct tombolo_message message;
	tombolo_address motor = tombolo_endpoint_wait(planner, "motor", 20 * SECOND);
	CHECK(motor != TOMBOLO_NOBODY);
	CHECK(tombolo_endpoint_receive(planner, TOMBOLO_ANYBODY, bytes, 64, &message, 20 * SECOND) == 4);
	CHECK(message.relayed_by == TOMBOLO_NOBODY);
	CHECK(tombolo_endpoint_relay(planner, message.request, motor, message.tag + 1, bytes, 4) == 0);
	/* It is somebody else's now. */
	FAILS(tombolo_endpoint_reply(planner, message.request, 0, NULL, 0), ECANCELED);
	return NULL;
}

static void *answer(void *handle)
{
	tombolo_handle motor = *(tombolo_handle *)handle;
	char bytes[64];
	struct tombolo_message message;
	CHECK(tombolo_endpoint_receive(motor, TOMBOLO_ANYBODY, bytes, 64, &message, 20 * SECOND) == 4);
	CHECK(message.kind == TOMBOLO_REQUEST && message.tag == 8 && message.takes == 64);
	/* That the desk has asked, the planner says. */
	CHECK(message.relayed_by != message.source);
	CHECK(message.relayed_by == tombolo_endpoint_find(motor, "planner", SECOND));
	CHECK(tombolo_endpoint_reply(motor, message.request, 9, "turned", 6) == 0);
	return NULL;
}

static void test_relay(void)
{
	tombolo_handle desk = bound(NULL), planner = bound("planner"), motor = bound("motor");
	tombolo_address at_planner = tombolo_endpoint_find(desk, "planner", 0), at_motor;
	char bytes[64];
	struct tombolo_message message;
	pthread_t passing, answering;
	/* Who answers has to be known to who asks. */
	CHECK((at_motor = tombolo_endpoint_find(desk, "motor", 0)) == tombolo_endpoint_address(motor));
	CHECK(pthread_create(&passing, NULL, pass_on, &planner) == 0);
	CHECK(pthread_create(&answering, NULL, answer, &motor) == 0);
	CHECK(tombolo_endpoint_call(desk, at_planner, 7, "turn", 4, bytes, 64, &message, 20 * SECOND) == 6);
	CHECK(memcmp(bytes, "turned", 6) == 0 && message.tag == 9 && message.source == at_motor);
	CHECK(pthread_join(passing, NULL) == 0 && pthread_join(answering, NULL) == 0);
}

static void test_many(void)
{
	enum { MANY = 40 };
	tombolo_handle others[MANY], planner;
	tombolo_address there;
	struct tombolo_peer peers[MANY + 1];
	int i, before = descriptors_open(), seen[MANY] = {0};
	planner = bound("planner");
	for (i = 0; i < MANY; i++) {
		others[i] = bound(NULL);
		CHECK((there = tombolo_endpoint_find(others[i], "planner", 0)) != TOMBOLO_NOBODY);
		CHECK(tombolo_endpoint_send_buffered(others[i], there, (uint32_t)i, &i, sizeof i, 0) == 0);
	}
	for (i = 0; i < MANY; i++) {
		int number;
		struct tombolo_message message;
		CHECK(tombolo_endpoint_receive(planner, TOMBOLO_ANYBODY, &number, sizeof number, &message, 20 * SECOND) == sizeof number);
		CHECK(number >= 0 && number < MANY && !seen[number]++ && message.tag == (uint32_t)number);
		CHECK(message.source == tombolo_endpoint_address(others[number]));
	}
	CHECK(tombolo_endpoint_peers(planner, peers, MANY + 1) == MANY);
	for (i = 0; i < MANY; i++)
		CHECK(tombolo_close(others[i]) == 0);
	CHECK(tombolo_close(planner) == 0);
	CHECK(descriptors_open() == before);
}

/* The grantee of `test_grants`, in a process of its own: does what it is told, and says how it ended. */
static void copy_as_told(tombolo_handle owner)
{
	tombolo_handle motor;
	tombolo_address from;
	struct tombolo_message message;
	struct tombolo_grant granted;
	int64_t grant;
	char bytes[64];
	CHECK(tombolo_close(owner) == 0);
	motor = bound("motor");
	CHECK((from = tombolo_endpoint_wait(motor, "planner", 20 * SECOND)) != TOMBOLO_NOBODY);
	CHECK(tombolo_endpoint_send_buffered(motor, from, 0, NULL, 0, SECOND) == 0);
	for (;;) {
		int failed = 0;
		CHECK(tombolo_endpoint_receive(motor, from, &grant, sizeof grant, &message, 20 * SECOND) == sizeof grant);
		if (message.tag == 'q')
			_exit(0);
		memset(bytes, 0, sizeof bytes);
		if (message.tag == 'r' && tombolo_endpoint_copy_in(motor, grant, 100, bytes, 6, SECOND) == -1)
			failed = errno;
		if (message.tag == 'w' && tombolo_endpoint_copy_out(motor, "written", 7, grant, 200, SECOND) == -1)
			failed = errno;
		if (message.tag == 'l') {
			CHECK(tombolo_endpoint_granted(motor, grant, &granted, SECOND) == 0);
			CHECK(granted.owner == from && granted.grant == grant && granted.bytes == 4096);
			snprintf(bytes, sizeof bytes, "%u", granted.access);
		}
		if (failed)
			snprintf(bytes, sizeof bytes, "errno %d", failed);
		CHECK(tombolo_endpoint_reply(motor, message.request, 0, bytes, strlen(bytes)) == 0);
	}
}

/* Tells the grantee, and returns what it says. */
static const char *told(tombolo_handle me, tombolo_address grantee, uint32_t what, int64_t grant)
{
	static char answer[64];
	ssize_t length = tombolo_endpoint_call(me, grantee, what, &grant, sizeof grant, answer, sizeof answer - 1, NULL, 20 * SECOND);
	CHECK(length >= 0);
	answer[length] = 0;
	return answer;
}

static void test_grants(void)
{
	tombolo_handle planner = bound("planner"), readable, writable;
	tombolo_address motor;
	struct tombolo_message message;
	int64_t to_read, to_write, again;
	char bytes[16], expected[32];
	pid_t child;
	CHECK((child = fork()) >= 0);
	if (child == 0)
		copy_as_told(planner);
	CHECK(tombolo_endpoint_receive(planner, TOMBOLO_ANYBODY, NULL, 0, &message, 20 * SECOND) == 0);
	motor = message.source;
	CHECK((readable = tombolo_endpoint_buffer(planner, 4096, TOMBOLO_ACCESS_READ)) > 0);
	CHECK((writable = tombolo_endpoint_buffer(planner, 4096, TOMBOLO_ACCESS_WRITE)) > 0);
	CHECK((to_read = tombolo_endpoint_grant(planner, readable, motor)) > 0);
	CHECK((to_write = tombolo_endpoint_grant(planner, writable, motor)) > 0 && to_read != to_write);
	CHECK(strcmp(told(planner, motor, 'l', to_read), "1") == 0);
	CHECK(strcmp(told(planner, motor, 'l', to_write), "2") == 0);
	/* What is written is read, there and here. */
	CHECK(tombolo_buffer_write(readable, 100, "golden", 6) == 0);
	CHECK(strcmp(told(planner, motor, 'r', to_read), "golden") == 0);
	CHECK(strcmp(told(planner, motor, 'w', to_write), "") == 0);
	CHECK(tombolo_buffer_read(writable, 200, bytes, 7) == 0 && memcmp(bytes, "written", 7) == 0);
	/* What was granted to be read is not written, and what is nobody's is not there. */
	snprintf(expected, sizeof expected, "errno %d", EACCES);
	CHECK(strcmp(told(planner, motor, 'w', to_read), expected) == 0);
	snprintf(expected, sizeof expected, "errno %d", ENOENT);
	CHECK(strcmp(told(planner, motor, 'r', INT64_MAX), expected) == 0);
	/* Taken back: not another byte, in either direction. */
	CHECK(tombolo_endpoint_revoke(planner, writable, to_write) == 0);
	FAILS(tombolo_endpoint_revoke(planner, writable, to_write), ENOENT);
	FAILS(tombolo_endpoint_revoke(planner, readable, to_write), ENOENT);
	snprintf(expected, sizeof expected, "errno %d", EKEYREVOKED);
	CHECK(strcmp(told(planner, motor, 'w', to_write), expected) == 0);
	CHECK(tombolo_buffer_read(writable, 200, bytes, 7) == 0 && memcmp(bytes, "written", 7) == 0);
	CHECK((again = tombolo_endpoint_grant(planner, writable, motor)) > 0 && again != to_write);
	CHECK(strcmp(told(planner, motor, 'w', again), "") == 0);
	/* With the buffer its grants go. */
	CHECK(tombolo_close(readable) == 0);
	CHECK(strcmp(told(planner, motor, 'r', to_read), expected) == 0);
	FAILS(tombolo_buffer_read(readable, 0, bytes, 1), EBADF);
	/* Out of bounds, and no buffer at all. */
	FAILS(tombolo_buffer_read(writable, 4096, bytes, 1), ERANGE);
	FAILS(tombolo_buffer_write(writable, UINT64_MAX, bytes, 2), ERANGE);
	CHECK(tombolo_buffer_write(writable, 4096, bytes, 0) == 0);
	FAILS(tombolo_endpoint_buffer(planner, 0, TOMBOLO_ACCESS_READ), EINVAL);
	FAILS(tombolo_endpoint_grant(planner, planner, motor), EINVAL);
	FAILS(tombolo_endpoint_grant(planner, writable, TOMBOLO_NOBODY), EINVAL);
	FAILS(tombolo_wait(writable, TOMBOLO_READING, 0), EINVAL);
	{
		/* A buffer of another endpoint of this very program. */
		tombolo_handle camera = bound("camera");
		FAILS(tombolo_endpoint_grant(camera, writable, motor), EINVAL);
		FAILS(tombolo_endpoint_copy_in(camera, again, 0, bytes, 4, SECOND), ENOENT);
		CHECK(tombolo_close(camera) == 0);
	}
	CHECK(tombolo_endpoint_send(planner, motor, 'q', &again, sizeof again, 20 * SECOND) == 0);
	finish_child(child);
}

/* Who has the privilege copies between buffers that others have granted to others. */
static void test_third_party(void)
{
	tombolo_handle planner = bound("planner"), motor = bound("motor"), copier = bound("copier");
	tombolo_handle source, target;
	int64_t from, to, back;
	char bytes[16];
	CHECK(tombolo_endpoint_find(planner, "motor", 0) != TOMBOLO_NOBODY);
	CHECK((source = tombolo_endpoint_buffer(planner, 1 << 20, TOMBOLO_ACCESS_READ)) > 0);
	CHECK((target = tombolo_endpoint_buffer(motor, 1 << 20, TOMBOLO_ACCESS_WRITE)) > 0);
	CHECK((from = tombolo_endpoint_grant(planner, source, tombolo_endpoint_address(motor))) > 0);
	CHECK((to = tombolo_endpoint_grant(motor, target, tombolo_endpoint_address(planner))) > 0);
	CHECK(tombolo_buffer_write(source, 1000, "carried", 8) == 0);
	CHECK(tombolo_endpoint_copy(copier, from, 0, to, 4, (1 << 20) - 4, SECOND) == 0);
	CHECK(tombolo_buffer_read(target, 1004, bytes, 8) == 0 && strcmp(bytes, "carried") == 0);
	FAILS(tombolo_endpoint_copy(copier, from, 0, to, 4, 1 << 20, SECOND), ERANGE);
	FAILS(tombolo_endpoint_copy(copier, to, 0, from, 0, 4, SECOND), EACCES);
	FAILS(tombolo_endpoint_copy(copier, from, UINT64_MAX, to, 0, UINT64_MAX, SECOND), ERANGE);
	/* Each end makes a half of what goes from one's buffer to the other's. */
	CHECK(tombolo_buffer_write(source, 2000, "half and half", 14) == 0);
	CHECK((back = tombolo_endpoint_grant(motor, target, tombolo_endpoint_address(planner))) > 0);
	CHECK(tombolo_endpoint_copy_from_own(planner, source, 2000, back, 3000, 7, SECOND) == 0);
	CHECK(tombolo_endpoint_copy_to_own(motor, from, 2007, target, 3007, 7, SECOND) == 0);
	CHECK(tombolo_buffer_read(target, 3000, bytes, 14) == 0 && strcmp(bytes, "half and half") == 0);
	FAILS(tombolo_endpoint_copy_to_own(motor, from, 0, target, 1, 1 << 20, SECOND), ERANGE);
	FAILS(tombolo_endpoint_copy_to_own(motor, from, 1, target, 0, 1 << 20, SECOND), ERANGE);
	FAILS(tombolo_endpoint_copy_from_own(motor, target, 0, from, 0, 1, SECOND), EACCES);
	FAILS(tombolo_endpoint_copy_to_own(motor, from, 0, motor, 0, 1, SECOND), EINVAL);
	/* Who has granted is gone. */
	CHECK(tombolo_close(planner) == 0 && tombolo_close(source) == 0);
	CHECK(tombolo_endpoint_copy(copier, from, 0, to, 0, 8, 5 * SECOND) == -1 && (errno == EOWNERDEAD || errno == EKEYREVOKED));
}

static const struct test tests[] = {
	{"names", test_names},
	{"refused", test_refused},
	{"waits", test_waits},
	{"interrupted_waits", test_interrupted_waits},
	{"death", test_death},
	{"forks", test_forks},
	{"relay", test_relay},
	{"many", test_many},
	{"grants", test_grants},
	{"third_party", test_third_party},
};

int main(int count, char **arguments)
{
	return run_one(tests, sizeof tests / sizeof *tests, count, arguments);
}
