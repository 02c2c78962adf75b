/*
 * A service in C that is asked by many: `ask` answers each line reversed, by four threads, the calls of which come back in any order; `wait` is never
 * answered before its caller has gone, and `gone` says how many have; `log` is an exchange, whose records all readers get. Before it serves, it does
 * everything wrong that a program may do wrong.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <tombolo/service.h>
#include <unistd.h>

#define WORKERS 4

static tombolo_service desk;
static int ask_file, wait_file, gone_file, log_file;
static unsigned gone;
static uint64_t waiting[64];
static pthread_mutex_t waiting_lock = PTHREAD_MUTEX_INITIALIZER;

/* Ends the program where a call did not fail as it should. */
static void fails(int result, int wanted, const char *call)
{
	if (result == -1 && errno == wanted && tombolo_error_text()[0] != '\0')
		return;
	fprintf(stderr, "%s: %d, errno %d (%s), and not %d\n", call, result, errno, tombolo_error_text(), wanted);
	exit(3);
}
#define FAILS(call, wanted) fails((int)(call), wanted, #call)

static void before_the_start(void)
{
	struct tombolo_call call;
	struct tombolo_stream_options options;
	tombolo_service wrong = tombolo_service_new("desk");

	FAILS(tombolo_service_new(NULL), EFAULT);
	FAILS(tombolo_service_new("\xff"), EINVAL);
	FAILS(tombolo_service_text(0, "a", "b"), EBADF);
	FAILS(tombolo_service_text(wrong, NULL, "b"), EFAULT);
	FAILS(tombolo_service_control(wrong, "a", "b", 4), EINVAL);
	FAILS(tombolo_service_session(wrong, "a", "b", 1), EINVAL);
	memset(&options, 0, sizeof options);
	FAILS(tombolo_service_stream(wrong, "a", "b", &options), EINVAL);
	options.size = sizeof options;
	options.reserved[1] = 1;
	FAILS(tombolo_service_stream(wrong, "a", "b", &options), EINVAL);
	FAILS(tombolo_service_next(wrong, &call, 0), ENOTCONN);
	FAILS(tombolo_service_publish(wrong, 0, "x", 1), ENOTCONN);
	tombolo_service_text(wrong, "a/b", "read");
	FAILS(tombolo_service_start(wrong), EINVAL);
	if (tombolo_service_close(wrong) != 0)
		exit(3);
	FAILS(tombolo_service_close(wrong), EBADF);
	FAILS(tombolo_service_start(wrong), EBADF);
	/* A name that the topology file has not. */
	wrong = tombolo_service_new("nobody");
	tombolo_service_text(wrong, "a", "read");
	if (tombolo_service_start(wrong) != 0)
		exit(3);
	FAILS(tombolo_service_next(wrong, &call, -1), ESHUTDOWN);
	tombolo_service_close(wrong);
}

static void after_the_start(void)
{
	struct tombolo_call call;
	char *much = calloc(1, (1 << 20) + 1);
	int status;
	pid_t child;

	FAILS(tombolo_service_start(desk), EALREADY);
	FAILS(tombolo_service_text(desk, "more", "read"), EBUSY);
	FAILS(tombolo_service_next(desk, &call, -2), EINVAL);
	FAILS(tombolo_service_next(desk, NULL, 0), EFAULT);
	FAILS(tombolo_service_answer(desk, 999, NULL, 0), ENOENT);
	FAILS(tombolo_service_answer(desk, 999, NULL, 1), EFAULT);
	FAILS(tombolo_service_answer(desk, 999, much, (1 << 20) + 1), EMSGSIZE);
	FAILS(tombolo_service_refuse(desk, 999, 0), EINVAL);
	FAILS(tombolo_service_publish(desk, ask_file, "x", 1), EINVAL);
	FAILS(tombolo_service_publish(desk, 99, "x", 1), EINVAL);
	FAILS(tombolo_service_publish(desk, log_file, much, (1 << 16) + 1), EMSGSIZE);
	free(much);
	child = fork();
	if (child == 0) {
		FAILS(tombolo_service_next(desk, &call, 0), ESTALE);
		if (tombolo_service_close(desk) != 0)
			_exit(4);
		FAILS(tombolo_service_close(desk), EBADF);
		_exit(0);
	}
	if (waitpid(child, &status, 0) != child || status != 0)
		exit(3);
}

/* Looks who has gone of those that wait. */
static void count_gone(void)
{
	pthread_mutex_lock(&waiting_lock);
	for (int i = 0; i < 64; i++)
		if (waiting[i] != 0 && tombolo_service_is_cancelled(desk, waiting[i]) == 1) {
			tombolo_service_refuse(desk, waiting[i], EINTR);
			waiting[i] = 0;
			gone++;
		}
	pthread_mutex_unlock(&waiting_lock);
}

static void keep(const struct tombolo_call *call)
{
	pthread_mutex_lock(&waiting_lock);
	for (int i = 0; i < 64; i++)
		if (waiting[i] == 0) {
			waiting[i] = call->id;
			break;
		}
	pthread_mutex_unlock(&waiting_lock);
}

static void answer(const struct tombolo_call *call)
{
	char text[256];
	size_t length = call->length < sizeof text - 1 ? call->length : sizeof text - 1;

	if (call->file == wait_file) {
		keep(call);
	} else if (call->file == gone_file) {
		count_gone();
		length = (size_t)snprintf(text, sizeof text, "%u\n", gone);
		tombolo_service_answer(desk, call->id, text, length);
	} else if (call->file == log_file) {
		if (tombolo_service_publish(desk, log_file, call->bytes, call->length) != 0)
			tombolo_service_refuse(desk, call->id, errno);
		else
			tombolo_service_answer(desk, call->id, NULL, 0);
	} else if (call->kind == TOMBOLO_CALL_IOCTL) {
		tombolo_service_answer(desk, call->id, call->domain, strlen(call->domain));
	} else {
		for (size_t i = 0; i < length; i++)
			text[i] = call->bytes[length - 1 - i];
		text[length] = '\n';
		tombolo_service_answer(desk, call->id, text, length + 1);
	}
}

static void *work(void *unused)
{
	struct tombolo_call call;

	while (tombolo_service_next(desk, &call, -1) == 0)
		answer(&call);
	return unused;
}

int main(void)
{
	pthread_t workers[WORKERS];
	struct pollfd readable = { .events = POLLIN };

	before_the_start();
	desk = tombolo_service_new("desk");
	ask_file = tombolo_service_session(desk, "ask", "use", TOMBOLO_IOCTL);
	wait_file = tombolo_service_session(desk, "wait", "use", 0);
	gone_file = tombolo_service_text(desk, "gone", "use");
	log_file = tombolo_service_exchange(desk, "log", "use", NULL);
	if (tombolo_service_start(desk) != 0) {
		fprintf(stderr, "desk: %s\n", tombolo_error_text());
		return 1;
	}
	after_the_start();
	readable.fd = tombolo_service_descriptor(desk);
	/* The first call is waited for by the descriptor. */
	if (poll(&readable, 1, -1) != 1)
		return 3;
	for (int i = 0; i < WORKERS; i++)
		pthread_create(&workers[i], NULL, work, NULL);
	for (int i = 0; i < WORKERS; i++)
		pthread_join(workers[i], NULL);
	fprintf(stderr, "desk: %s\n", tombolo_error_text());
	return errno == ESHUTDOWN ? 0 : 1;
}
