/* The adapter kit of `tombolo bench` for C: docs/spec/bench-adapter.md is the protocol.
 *
 * An adapter defines three functions and calls tombolo_bench_main:
 *
 *   int serve_at(const struct tombolo_bench_task *task, char *place, size_t place_bytes);
 *       The follower: makes the server and writes where it is found, a word without blanks.
 *   int serve(const struct tombolo_bench_task *task);
 *       Answers each request with itself until the client is gone: tombolo_bench_request() for each one, before its answer.
 *   int connect_to(const struct tombolo_bench_task *task);
 *       The leader: connects to task->place.
 *   int ask(const struct tombolo_bench_task *task, const void *request, void *answer);
 *       1: it was answered; 0: no answer came; -1: the loop is over.
 *
 * Each returns 0 (or as above), or -1 with errno set. The kit keeps the schedule, the clock, numbers and checksums, and the lines.
 * Needs -lm. */
#ifndef TOMBOLO_BENCH_H
#define TOMBOLO_BENCH_H

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TOMBOLO_BENCH_PROTOCOL "ready tombolo-bench-1"
/* An open loop sleeps until so long before a request is due, and then looks at the clock. */
#define TOMBOLO_BENCH_AWAKE_BEFORE_NS 150000
#define TOMBOLO_BENCH_SAMPLES_MAX ((size_t)1 << 20)
/* Number (8 bytes) and checksum (4), little endian, at the beginning of each payload. */
#define TOMBOLO_BENCH_HEADER 12

struct tombolo_bench_task {
    char role[16], loop[16], address[64], folder[1024], place[256];
    uint64_t bytes, work_ns, interval_ns, window_ns, seed;
};

struct tombolo_bench_adapter {
    int (*serve_at)(const struct tombolo_bench_task *task, char *place, size_t place_bytes);
    int (*serve)(const struct tombolo_bench_task *task);
    int (*connect_to)(const struct tombolo_bench_task *task);
    int (*ask)(const struct tombolo_bench_task *task, const void *request, void *answer);
};

/* Of the follower: requests that were not whole. */
static uint64_t tombolo_bench_wrong;

static inline uint64_t tombolo_bench_clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline uint64_t tombolo_bench_now_ns(void) { return tombolo_bench_clock_ns(CLOCK_MONOTONIC); }

/* CRC-32 of ISO 3309, begun with a value of its own, as zlib has it. */
static inline uint32_t tombolo_bench_crc(uint32_t begin, const unsigned char *bytes, size_t count) {
    uint32_t crc = ~begin;
    for (size_t at = 0; at < count; at++) {
        crc ^= bytes[at];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (0xEDB88320u & -(crc & 1u));
    }
    return ~crc;
}

/* SplitMix64: the schedule and nothing else is drawn from it. */
static inline double tombolo_bench_unit(uint64_t *state) {
    uint64_t mixed = *state += 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
    return (double)((mixed ^ mixed >> 31) >> 11) / 9007199254740992.0;
}

static inline void tombolo_bench_wait_until(uint64_t instant_ns) {
    uint64_t now = tombolo_bench_now_ns();
    if (now + TOMBOLO_BENCH_AWAKE_BEFORE_NS < instant_ns) {
        uint64_t wake = instant_ns - TOMBOLO_BENCH_AWAKE_BEFORE_NS;
        struct timespec until = {(time_t)(wake / 1000000000u), (long)(wake % 1000000000u)};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) {
        }
    }
    while (tombolo_bench_now_ns() < instant_ns) {
    }
}

static inline void tombolo_bench_put(unsigned char *to, uint64_t value, int bytes) {
    for (int at = 0; at < bytes; at++) to[at] = (unsigned char)(value >> 8 * at);
}

static inline uint64_t tombolo_bench_get(const unsigned char *from, int bytes) {
    uint64_t value = 0;
    for (int at = 0; at < bytes; at++) value |= (uint64_t)from[at] << 8 * at;
    return value;
}

static inline uint32_t tombolo_bench_checksum(const struct tombolo_bench_task *task, const unsigned char *request) {
    uint32_t begin = (uint32_t)(tombolo_bench_get(request, 8) ^ task->seed);
    return tombolo_bench_crc(begin, request + TOMBOLO_BENCH_HEADER, task->bytes - TOMBOLO_BENCH_HEADER);
}

/* The follower calls it for each request: looks whether it is whole, and computes as long as the task wants. */
static inline void tombolo_bench_request(const struct tombolo_bench_task *task, const void *request) {
    const unsigned char *bytes = (const unsigned char *)request;
    if (tombolo_bench_get(bytes + 8, 4) != tombolo_bench_checksum(task, bytes)) tombolo_bench_wrong++;
    uint64_t until = tombolo_bench_now_ns() + task->work_ns;
    while (tombolo_bench_now_ns() < until) {
    }
}

static inline int tombolo_bench_text(char *to, size_t room, const char *value) {
    return snprintf(to, room, "%s", value) < (int)room ? 0 : -1;
}

static inline int tombolo_bench_field(struct tombolo_bench_task *task, const char *name, const char *value) {
    uint64_t number = strtoull(value, NULL, 10);
    if (!strcmp(name, "role")) return tombolo_bench_text(task->role, sizeof task->role, value);
    if (!strcmp(name, "loop")) return tombolo_bench_text(task->loop, sizeof task->loop, value);
    if (!strcmp(name, "address")) return tombolo_bench_text(task->address, sizeof task->address, value);
    if (!strcmp(name, "folder")) return tombolo_bench_text(task->folder, sizeof task->folder, value);
    if (!strcmp(name, "place")) return tombolo_bench_text(task->place, sizeof task->place, value);
    if (!strcmp(name, "bytes")) task->bytes = number;
    else if (!strcmp(name, "work_ns")) task->work_ns = number;
    else if (!strcmp(name, "interval_ns")) task->interval_ns = number;
    else if (!strcmp(name, "window_ns")) task->window_ns = number;
    else if (!strcmp(name, "seed")) task->seed = number;
    /* Fields of later versions mean nothing here. */
    return 0;
}

static inline int tombolo_bench_hear(char *line, int room) {
    if (!fgets(line, room, stdin)) return -1;
    line[strcspn(line, "\n")] = 0;
    return 0;
}

static inline int tombolo_bench_task_of(char *line, struct tombolo_bench_task *task) {
    char *word = strtok(line, " ");
    if (!word || strcmp(word, "task")) return -1;
    while ((word = strtok(NULL, " "))) {
        char *value = strchr(word, '=');
        if (!value) return -1;
        *value++ = 0;
        if (tombolo_bench_field(task, word, value)) return -1;
    }
    return task->bytes < 16 ? -1 : 0;
}

static inline int tombolo_bench_lead(const struct tombolo_bench_task *task, const struct tombolo_bench_adapter *adapter) {
    char line[64];
    unsigned char *request = (unsigned char *)malloc(task->bytes), *answer = (unsigned char *)malloc(task->bytes);
    uint64_t *samples = (uint64_t *)malloc(TOMBOLO_BENCH_SAMPLES_MAX * 2 * sizeof *samples);
    if (!request || !answer || !samples || adapter->connect_to(task)) return -1;
    puts("primed");
    fflush(stdout);
    if (tombolo_bench_hear(line, sizeof line)) return 0;
    for (size_t at = 0; at < task->bytes; at++) request[at] = (unsigned char)at;
    int is_closed = !strcmp(task->loop, "closed"), is_periodic = !strcmp(task->loop, "periodic");
    uint64_t used = tombolo_bench_clock_ns(CLOCK_PROCESS_CPUTIME_ID), begin = tombolo_bench_now_ns();
    uint64_t now = begin, number = 0, unanswered = 0, wrong = 0, chance = task->seed;
    double offset = 0;
    size_t count = 0;
    while (count < TOMBOLO_BENCH_SAMPLES_MAX) {
        uint64_t due = is_closed ? now : begin + (uint64_t)offset;
        if (due >= begin + task->window_ns) break;
        offset += (double)task->interval_ns * (is_periodic ? 1.0 : -log(1.0 - tombolo_bench_unit(&chance)));
        tombolo_bench_put(request, ++number, 8);
        tombolo_bench_put(request + 8, tombolo_bench_checksum(task, request), 4);
        tombolo_bench_wait_until(due);
        uint64_t sent = tombolo_bench_now_ns();
        int answered = adapter->ask(task, request, answer);
        now = tombolo_bench_now_ns();
        if (answered < 0) return -1;
        if (!answered) unanswered++;
        else if (memcmp(request, answer, task->bytes)) wrong++;
        else {
            samples[2 * count] = now - (is_closed ? sent : due);
            samples[2 * count++ + 1] = now - sent;
        }
    }
    used = tombolo_bench_clock_ns(CLOCK_PROCESS_CPUTIME_ID) - used;
    for (size_t at = 0; at < count; at++) printf("sample %" PRIu64 " %" PRIu64 "\n", samples[2 * at], samples[2 * at + 1]);
    printf("done unanswered=%" PRIu64 " wrong=%" PRIu64 " elapsed_ns=%" PRIu64 " processor_ns=%" PRIu64 "\n", unanswered, wrong, now - begin, used);
    free(request);
    free(answer);
    free(samples);
    return fflush(stdout);
}

static inline int tombolo_bench_follow(const struct tombolo_bench_task *task, const struct tombolo_bench_adapter *adapter) {
    char line[64], place[256];
    if (adapter->serve_at(task, place, sizeof place)) return -1;
    printf("waiting %s\nprimed\n", place);
    fflush(stdout);
    if (tombolo_bench_hear(line, sizeof line)) return 0;
    uint64_t used = tombolo_bench_clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    if (adapter->serve(task)) return -1;
    used = tombolo_bench_clock_ns(CLOCK_PROCESS_CPUTIME_ID) - used;
    printf("done wrong=%" PRIu64 " processor_ns=%" PRIu64 "\n", tombolo_bench_wrong, used);
    return fflush(stdout);
}

/* Leads the conversation; the result is that of main. */
static inline int tombolo_bench_main(const struct tombolo_bench_adapter *adapter) {
    static struct tombolo_bench_task task;
    static char line[4096];
    puts(TOMBOLO_BENCH_PROTOCOL);
    fflush(stdout);
    if (tombolo_bench_hear(line, sizeof line)) return 0;
    if (tombolo_bench_task_of(line, &task)) {
        fputs("this is no task\n", stderr);
        return 1;
    }
    int is_follower = !strcmp(task.role, "follow");
    if (is_follower ? tombolo_bench_follow(&task, adapter) : tombolo_bench_lead(&task, adapter)) {
        perror("the adapter failed");
        return 1;
    }
    return 0;
}

#endif
