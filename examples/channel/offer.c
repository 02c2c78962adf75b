/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Offers a channel that says everything louder: offer NAME [OPENERS]. Serves many openers at once, in one poll(2) loop, and ends when
 * so many have come and gone. Every program of this folder that opens can talk to it.
 */
#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tombolo/channel.h>

#define CHANNELS_MAX 16

static void fail(const char *what)
{
	fprintf(stderr, "offer: %s: %s\n", what, tombolo_error_text());
	exit(1);
}

/* Answers all that has come. Returns 0 when the opener is gone. */
static int answer(tombolo_handle channel)
{
	for (;;) {
		char text[4096];
		ssize_t length = tombolo_next_length(channel), i;
		/* An empty message is one: so the end is looked for, and not a length of 0. */
		if (length < 0 && (errno == EAGAIN || errno == ENODATA))
			return errno == EAGAIN;
		if (length < 0 || (length = tombolo_read(channel, text, sizeof text)) < 0)
			fail("read");
		for (i = 0; i < length; i++)
			text[i] = (char)toupper((unsigned char)text[i]);
		if (tombolo_write(channel, text, (size_t)length) < 0 && errno != EPIPE)
			fail("write");
	}
}

int main(int count, char **arguments)
{
	struct pollfd polled[1 + CHANNELS_MAX];
	tombolo_handle channels[CHANNELS_MAX], offer;
	struct tombolo_options options;
	int open_now = 0, left = count > 2 ? atoi(arguments[2]) : -1, i;
	if (count < 2) {
		fprintf(stderr, "usage: offer NAME [OPENERS]\n");
		return 2;
	}
	memset(&options, 0, sizeof options);
	options.size = sizeof options;
	options.flags = TOMBOLO_NONBLOCK;
	if ((offer = tombolo_offer(arguments[1], &options)) < 0)
		fail("offer");
	printf("offering at %s\n", arguments[1]);
	fflush(stdout);
	polled[0].fd = tombolo_poll_descriptor(offer, TOMBOLO_READING);
	while (left != 0) {
		/* No more openers than there are places for: the others wait. */
		polled[0].events = open_now < CHANNELS_MAX ? POLLIN : 0;
		for (i = 0; i < open_now; i++) {
			polled[1 + i].fd = tombolo_poll_descriptor(channels[i], TOMBOLO_READING);
			polled[1 + i].events = POLLIN;
		}
		if (poll(polled, 1 + (nfds_t)open_now, -1) < 0 && errno != EINTR) {
			perror("offer: poll");
			return 1;
		}
		for (i = open_now - 1; i >= 0; i--) {
			if (answer(channels[i]))
				continue;
			tombolo_close(channels[i]);
			channels[i] = channels[--open_now];
			left -= left > 0;
		}
		if (open_now < CHANNELS_MAX) {
			tombolo_handle channel = tombolo_accept(offer);
			if (channel > 0)
				channels[open_now++] = channel;
			else if (errno != EAGAIN)
				fail("accept");
		}
	}
	return tombolo_close(offer) == 0 ? 0 : 1;
}
