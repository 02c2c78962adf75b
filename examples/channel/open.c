/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Sends words over a channel and prints what comes back: open NAME WORD... Every program of this folder that offers can answer. The
 * words are written where the other end reads them: nothing is copied on the way.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tombolo/channel.h>

static void fail(const char *what)
{
	fprintf(stderr, "open: %s: %s\n", what, tombolo_error_text());
	exit(1);
}

int main(int count, char **arguments)
{
	struct tombolo_options options;
	tombolo_handle channel;
	int i;
	if (count < 2) {
		fprintf(stderr, "usage: open NAME WORD...\n");
		return 2;
	}
	memset(&options, 0, sizeof options);
	options.size = sizeof options;
	options.wait_ns = INT64_C(10000000000); /* the offerer may come a little later */
	if ((channel = tombolo_open(arguments[1], &options)) < 0)
		fail("open");
	for (i = 2; i < count; i++) {
		size_t length = strlen(arguments[i]);
		const void *answer;
		ssize_t answered;
		char *loan = tombolo_loan(channel, length);
		if (loan == NULL)
			fail("loan");
		memcpy(loan, arguments[i], length);
		if (tombolo_commit(channel, length) < 0)
			fail("commit");
		if ((answered = tombolo_view(channel, &answer)) < 0)
			fail("view");
		if (answer == NULL) {
			fprintf(stderr, "open: the offerer is gone\n");
			return 1;
		}
		printf("%.*s\n", (int)answered, (const char *)answer);
		if (tombolo_release(channel) < 0)
			fail("release");
	}
	return tombolo_close(channel) == 0 ? 0 : 1;
}
