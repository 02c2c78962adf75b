/* Xen's own channels for user space, measured as `xen_peer` measures ours: server or client of round trips or of a stream.
 *
 *   vchan_peer server|client PEER-DOMAIN PATH rtt|stream SIZE COUNT
 *
 * The client prints what it measured: of round trips the median, of a stream the whole, in ns. */
#include <libxenvchan.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RING_BYTES = 256 << 10, WARM_UP = 20 };

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void fail(const char *what) {
    printf("failed: %s\n", what);
    exit(1);
}

static int by_value(const void *a, const void *b) {
    uint64_t one = *(const uint64_t *)a, other = *(const uint64_t *)b;
    return (one > other) - (one < other);
}

static void put(struct libxenvchan *vchan, const void *bytes, size_t size) {
    if (libxenvchan_send(vchan, bytes, size) != (int)size) fail("send");
}

static void get(struct libxenvchan *vchan, void *bytes, size_t size) {
    if (libxenvchan_recv(vchan, bytes, size) != (int)size) fail("receive");
}

int main(int count_of_words, char **words) {
    if (count_of_words != 7) fail("six words are wanted");
    int is_server = !strcmp(words[1], "server"), is_stream = !strcmp(words[4], "stream");
    int domain = atoi(words[2]);
    size_t size = (size_t)atol(words[5]), count = (size_t)atol(words[6]);
    struct libxenvchan *vchan = NULL;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (is_server) {
        vchan = libxenvchan_server_init(NULL, domain, words[3], RING_BYTES, RING_BYTES);
        if (vchan) puts("there");
    } else {
        /* The server has said that it is there. */
        vchan = libxenvchan_client_init(NULL, domain, words[3]);
    }
    if (!vchan) fail("no vchan");
    vchan->blocking = 1;
    char *bytes = calloc(1, size);
    uint64_t *times = calloc(count + WARM_UP, sizeof *times);
    if (!bytes || !times) fail("no memory");
    if (is_stream && is_server) {
        for (size_t at = 0; at < count; at++) get(vchan, bytes, size);
        put(vchan, bytes, 1);
        /* Closes when the client has. */
        while (libxenvchan_is_open(vchan) == 1 && !libxenvchan_wait(vchan)) {}
    } else if (is_stream) {
        uint64_t begin = now();
        for (size_t at = 0; at < count; at++) put(vchan, bytes, size);
        get(vchan, bytes, 1);
        printf("%llu\n", (unsigned long long)(now() - begin));
    } else if (is_server) {
        for (size_t at = 0; at < count + WARM_UP; at++) {
            get(vchan, bytes, size);
            put(vchan, bytes, size);
        }
        while (libxenvchan_is_open(vchan) == 1 && !libxenvchan_wait(vchan)) {}
    } else {
        for (size_t at = 0; at < count + WARM_UP; at++) {
            uint64_t begin = now();
            put(vchan, bytes, size);
            get(vchan, bytes, size);
            times[at] = now() - begin;
        }
        qsort(times + WARM_UP, count, sizeof *times, by_value);
        printf("%llu\n", (unsigned long long)times[WARM_UP + count / 2]);
    }
    libxenvchan_close(vchan);
    return 0;
}
