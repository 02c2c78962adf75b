/* The endpoint `filter`: takes frames of samples from the sensor, tells the store what is in each, and the alarm when one is too long.
 * It trusts nobody: what it does not understand it drops, and whoever does not keep up loses messages of its own alone. */

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tombolo/endpoint.h>

/* What messages mean; sensor.py and store.py have the same numbers. */
enum { FRAME = 1, RESULT = 2, ALARM = 3 };

/* A frame is too large for a message: it lies in a buffer that the sensor has granted to this endpoint, in one of its slots. */
enum { SAMPLES = 16384, SLOTS = 8 };

struct frame {
	int64_t grant;
	uint64_t number;
	uint32_t slot;
	uint32_t samples;
};

struct result {
	uint64_t number;
	double mean_us, longest_us;
};

/* One whom we send to. It may end and come back: then it has another address. */
struct neighbour {
	const char *name;
	tombolo_address address;
};

static tombolo_handle me;
static struct neighbour store = { .name = "store" }, alarm_bell = { .name = "alarm" };
static double threshold_us = 5000;

/* Sends what may be lost: where nobody is, or one who does not keep up, the next frame does not wait for it. */
static void tell(struct neighbour *to, uint32_t tag, const void *bytes, size_t length)
{
	if (to->address == TOMBOLO_NOBODY)
		to->address = tombolo_endpoint_find(me, to->name, 0);
	if (to->address == TOMBOLO_NOBODY)
		return;
	if (tombolo_endpoint_send_buffered(me, to->address, tag, bytes, length, 0) < 0 && errno != EAGAIN) {
		fprintf(stderr, "filter: %s: %s\n", to->name, tombolo_error_text());
		to->address = TOMBOLO_NOBODY;
	}
}

/* Samples are gaps between two looks at the clock, in ns. */
static struct result measure(const uint32_t *samples, size_t count, uint64_t number)
{
	struct result result = { .number = number };
	uint32_t longest = 0;
	for (size_t i = 0; i < count; i++) {
		result.mean_us += samples[i] / 1e3 / (double)count;
		longest = samples[i] > longest ? samples[i] : longest;
	}
	result.longest_us = longest / 1e3;
	return result;
}

static void take_frame(const struct frame *frame, tombolo_address sensor)
{
	static uint32_t samples[SAMPLES];
	if (frame->slot >= SLOTS || frame->samples == 0 || frame->samples > SAMPLES)
		return;
	uint64_t offset = (uint64_t)frame->slot * sizeof samples;
	if (tombolo_endpoint_copy_in(me, frame->grant, offset, samples, frame->samples * sizeof *samples, 1000000000) < 0) {
		fprintf(stderr, "filter: frame %" PRIu64 ": %s\n", frame->number, tombolo_error_text());
		return;
	}
	/* The slot is free again. One bit for each, so that nothing is lost when the sensor takes several at once. */
	tombolo_endpoint_notify(me, sensor, UINT64_C(1) << frame->slot);
	struct result result = measure(samples, frame->samples, frame->number);
	tell(&store, RESULT, &result, sizeof result);
	if (result.longest_us > threshold_us) {
		char text[100];
		int length = snprintf(text, sizeof text, "frame %" PRIu64 ": nobody looked at the clock for %.1f us",
		                      frame->number, result.longest_us);
		tell(&alarm_bell, ALARM, text, (size_t)length);
	}
}

/* A request from the desk: `threshold` says it, `threshold 0.2` sets it, in us. */
static void answer(const struct tombolo_message *request, char *question)
{
	char text[100];
	double wished;
	if (sscanf(question, "threshold %lf", &wished) == 1 && wished >= 0)
		threshold_us = wished;
	else if (strcmp(question, "threshold") != 0) {
		static const char help[] = "I understand: threshold, threshold MICROSECONDS";
		tombolo_endpoint_reply(me, request->request, request->tag, help, strlen(help));
		return;
	}
	int length = snprintf(text, sizeof text, "threshold %g us", threshold_us);
	/* Whoever does not wait any more has nothing from an error of ours. */
	tombolo_endpoint_reply(me, request->request, request->tag, text, (size_t)length);
}

int main(void)
{
	me = tombolo_endpoint_bind("filter", NULL);
	if (me < 0) {
		fprintf(stderr, "filter: %s\n", tombolo_error_text());
		return 1;
	}
	/* As long as a message of this distributed container can be, and a NUL for texts. */
	static char bytes[32768 + 1];
	for (;;) {
		struct tombolo_message message;
		ssize_t length = tombolo_endpoint_receive(me, TOMBOLO_ANYBODY, bytes, sizeof bytes - 1, &message, TOMBOLO_FOREVER);
		if (length < 0) {
			fprintf(stderr, "filter: %s\n", tombolo_error_text());
			return 1;
		}
		struct frame frame;
		bytes[length] = '\0';
		if (message.kind == TOMBOLO_REQUEST)
			answer(&message, bytes);
		else if (message.kind == TOMBOLO_MESSAGE && message.tag == FRAME && length == sizeof frame) {
			memcpy(&frame, bytes, sizeof frame);
			take_frame(&frame, message.source);
		}
	}
}
