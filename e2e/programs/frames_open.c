/* Opens the channel `frames`, asks in place, then waits for the end; the same as frames_open.py, word for word. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <tombolo/channel.h>

#define ROUNDS 300u
#define LONGEST 60000u

static void fail(const char *what, unsigned number)
{
	fprintf(stderr, "frames_open: %s, round %u: %s\n", what, number, tombolo_error_text());
	exit(1);
}

static unsigned char asked(unsigned number, unsigned place)
{
	return (unsigned char)(number + place % 251);
}

int main(void)
{
	struct tombolo_options options = { .size = sizeof options, .wait_ns = 20000000000 };
	tombolo_handle channel = tombolo_open("frames", &options);
	if (channel < 0)
		fail("open", 0);
	for (unsigned number = 0; number < ROUNDS; number++) {
		unsigned length = 1 + number * 7919 % LONGEST;
		unsigned char *loan = tombolo_loan(channel, length);
		if (loan == NULL)
			fail("loan", number);
		for (unsigned place = 0; place < length; place++)
			loan[place] = asked(number, place);
		if (tombolo_commit(channel, length) < 0)
			fail("commit", number);
		const void *view;
		if (tombolo_view(channel, &view) != (ssize_t)length)
			fail("view", number);
		const unsigned char *answer = view;
		for (unsigned place = 0; place < length; place++)
			if (answer[place] != (unsigned char)(asked(number, place) + 1))
				fail("another answer", number);
		if (tombolo_release(channel) < 0)
			fail("release", number);
	}
	printf("answered %u\n", ROUNDS);
	fflush(stdout);
	const void *view;
	if (tombolo_view(channel, &view) != 0 || view != NULL)
		fail("a message that nobody asked for", ROUNDS);
	if (tombolo_write(channel, "is anybody there?", 17) >= 0)
		puts("over: written to nobody");
	else if (errno == EPIPE)
		puts("over: end of file, EPIPE");
	else
		fail("write", ROUNDS);
	return tombolo_close(channel) < 0;
}
