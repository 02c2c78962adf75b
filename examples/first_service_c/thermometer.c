/* A thermometer: a text, a control, and a stream. */
#include <errno.h>
#include <stdio.h>
#include <tombolo/service.h>

int main(void)
{
	double degrees = 20.0;
	tombolo_service thermometer = tombolo_service_new("thermometer");
	int reading = tombolo_service_text(thermometer, "reading", "read");
	int ctl = tombolo_service_control(thermometer, "ctl", "calibrate", 0);
	int samples = tombolo_service_stream(thermometer, "samples", "read", NULL);
	struct tombolo_call call;
	int next = tombolo_service_start(thermometer);

	while (next == 0 || errno == ETIMEDOUT) {
		char line[32];
		int length = snprintf(line, sizeof line, "%.1f\n", degrees);
		next = tombolo_service_next(thermometer, &call, 100000000);
		if (next != 0)
			tombolo_service_publish(thermometer, samples, line, length);
		else if (call.file == reading)
			tombolo_service_answer(thermometer, call.id, line, length);
		else if (call.file == ctl && sscanf(call.bytes, "%lf", &degrees) == 1)
			tombolo_service_answer(thermometer, call.id, NULL, 0);
		else
			tombolo_service_refuse(thermometer, call.id, EINVAL);
	}
	return fprintf(stderr, "thermometer: %s\n", tombolo_error_text()) > 0;
}
