/* An adapter: an echo over TCP. cc -O2 -o echo_tcp echo_tcp.c -lm */
#define _GNU_SOURCE
#include "tombolo_bench.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

static int listener, connection;

static int address_of(const struct tombolo_bench_task *task, uint16_t port, struct sockaddr_in *address) {
    memset(address, 0, sizeof *address);
    address->sin_family = AF_INET;
    address->sin_port = htons(port);
    return inet_pton(AF_INET, task->address, &address->sin_addr) == 1 ? 0 : -1;
}

static int without_delay(int socket) {
    int one = 1;
    return setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static int serve_at(const struct tombolo_bench_task *task, char *place, size_t place_bytes) {
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    if (address_of(task, 0, &address)) return -1;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1)) return -1;
    if (getsockname(listener, (struct sockaddr *)&address, &length)) return -1;
    snprintf(place, place_bytes, "%u", (unsigned)ntohs(address.sin_port));
    return 0;
}

static int send_all(const unsigned char *bytes, size_t count) {
    while (count > 0) {
        ssize_t sent = send(connection, bytes, count, MSG_NOSIGNAL);
        if (sent <= 0) return -1;
        bytes += sent;
        count -= (size_t)sent;
    }
    return 0;
}

static int serve(const struct tombolo_bench_task *task) {
    unsigned char *request = malloc(task->bytes);
    connection = accept(listener, NULL, NULL);
    if (!request || connection < 0 || without_delay(connection)) return -1;
    while (recv(connection, request, task->bytes, MSG_WAITALL) == (ssize_t)task->bytes) {
        tombolo_bench_request(task, request);
        if (send_all(request, task->bytes)) break;
    }
    free(request);
    return close(connection);
}

static int connect_to(const struct tombolo_bench_task *task) {
    struct sockaddr_in address;
    if (address_of(task, (uint16_t)atoi(task->place), &address)) return -1;
    connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connection < 0 || without_delay(connection)) return -1;
    return connect(connection, (struct sockaddr *)&address, sizeof address);
}

static int ask(const struct tombolo_bench_task *task, const void *request, void *answer) {
    if (send_all(request, task->bytes)) return -1;
    return recv(connection, answer, task->bytes, MSG_WAITALL) == (ssize_t)task->bytes ? 1 : -1;
}

int main(void) {
    struct tombolo_bench_adapter adapter = {serve_at, serve, connect_to, ask};
    return tombolo_bench_main(&adapter);
}
