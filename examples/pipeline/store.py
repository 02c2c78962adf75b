"""The endpoint `store`: remembers what the filter said of the last frames, and answers questions about them with JSON."""

import collections
import json
import struct

import tombolo

RESULT = 2  # what its messages mean; filter.c has the same numbers
RESULT_FORM = struct.Struct("<Qdd")  # number of the frame, mean and longest gap in us
KEPT = 600  # frames: a minute
PATIENT = 64  # those who wait for the next frame; who is one too many drives out the one who waits longest


def frame_of(result):
    frame, _, longest = result
    return {"frame": frame, "longest_us": round(longest, 1)}


def answer(question, results):
    """What a question is answered with at once."""
    words = question.split()
    if words == ["summary"]:
        if not results:
            return {"frames": 0}
        return {
            "frames": results[-1][0],
            "mean_us": round(sum(mean for _, mean, _ in results) / len(results), 3),
            "longest_us": round(max(longest for _, _, longest in results), 1),
        }
    if len(words) == 2 and words[0] == "last" and words[1].isdecimal():
        count = min(int(words[1]), KEPT, len(results))
        return [frame_of(result) for result in list(results)[len(results) - count :]]
    return {"error": "I understand: summary, last COUNT, next"}


def reply(me, request, value):
    try:
        me.reply(request, json.dumps(value).encode()[: request.takes])
    except tombolo.EndpointError as error:
        print(error.strerror, flush=True)  # whoever asked does not wait any more


def main():
    results = collections.deque(maxlen=KEPT)
    patient = collections.deque(maxlen=PATIENT)  # requests for the next frame: a reply may come later, and others are served meanwhile
    with tombolo.Endpoint("store", wait=10) as me:
        for message in me:
            if message.kind == tombolo.Kind.REQUEST and message.data == b"next":
                patient.append(message)
            elif message.kind == tombolo.Kind.REQUEST:
                reply(me, message, answer(message.data.decode(errors="replace"), results))
            elif message.kind == tombolo.Kind.MESSAGE and message.tag == RESULT and len(message.data) == RESULT_FORM.size:
                results.append(RESULT_FORM.unpack(message.data))
                while patient:
                    reply(me, patient.popleft(), frame_of(results[-1]))


if __name__ == "__main__":
    main()
