/* Every function that the library stands in for, by the rules of their manual pages. Prints what it finds; exits 0 if every
 * rule that it checks by itself holds. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                        \
    do {                                                                        \
        if (!(condition)) {                                                     \
            printf("FAILED line %d: %s (errno %d)\n", __LINE__, #condition, errno); \
            exit(1);                                                            \
        }                                                                       \
    } while (0)

static const char *text(const struct sockaddr *address, int *port)
{
    static char buffer[INET6_ADDRSTRLEN];
    const void *bytes = &((const struct sockaddr_in *)address)->sin_addr;
    *port = ntohs(((const struct sockaddr_in *)address)->sin_port);
    if (address->sa_family == AF_INET6)
        bytes = &((const struct sockaddr_in6 *)address)->sin6_addr;
    return inet_ntop(address->sa_family, bytes, buffer, sizeof buffer);
}

static int look_up(const char *node, const char *service, int flags, int family, int socktype)
{
    struct addrinfo hints = { .ai_flags = flags, .ai_family = family, .ai_socktype = socktype }, *found = NULL;
    int code, port;
    errno = 77;
    code = getaddrinfo(node, service, &hints, &found);
    printf("getaddrinfo %s %s %#x %d %d:", node, service ? service : "-", flags, family, socktype);
    if (code) {
        printf(" %d\n", code);
        return code;
    }
    CHECK(errno == 77);
    if (found->ai_canonname)
        printf(" [%s]", found->ai_canonname);
    for (struct addrinfo *entry = found; entry; entry = entry->ai_next) {
        printf(" %s", text(entry->ai_addr, &port));
        printf("/%d/%d/%d", port, entry->ai_socktype, entry->ai_protocol);
        CHECK(entry->ai_family == entry->ai_addr->sa_family);
        CHECK(entry == found || entry->ai_canonname == NULL);
    }
    printf("\n");
    freeaddrinfo(found);
    return 0;
}

static void hosts(void)
{
    struct hostent *host = gethostbyname("alias.example"), entry, *found;
    char small[8], *buffer = malloc(4096);
    int error, code;
    size_t length;
    CHECK(host && !strcmp(host->h_name, "host.example") && !strcmp(host->h_aliases[0], "alias.example"));
    CHECK(host->h_addrtype == AF_INET && host->h_length == 4 && host->h_addr_list[1] == NULL);
    CHECK(!memcmp(host->h_addr_list[0], "\xc0\x00\x02\x01", 4));
    host = gethostbyname2("v6.example", AF_INET6);
    CHECK(host && host->h_length == 16 && ((unsigned char *)host->h_addr_list[0])[15] == 6);
    CHECK(gethostbyname("missing.example") == NULL && h_errno == HOST_NOT_FOUND);
    CHECK(gethostbyname("v6.example") == NULL && h_errno == NO_DATA);
    CHECK(gethostbyname("failing.example") == NULL && h_errno == TRY_AGAIN);
    host = gethostbyname("192.0.2.77"); /* digits: the C library */
    CHECK(host && !memcmp(host->h_addr_list[0], "\xc0\x00\x02\x4d", 4));
    host = gethostbyaddr("\xc0\x00\x02\x01", 4, AF_INET);
    CHECK(host && !strcmp(host->h_name, "host.example"));
    CHECK(gethostbyaddr("\xc0\x00\x02\x09", 4, AF_INET) == NULL && h_errno == HOST_NOT_FOUND);

    code = gethostbyname_r("host.example", &entry, small, sizeof small, &found, &error);
    CHECK(code == ERANGE && errno == ERANGE && error == NETDB_INTERNAL && found == NULL);
    for (length = 1; length < 4096; length++) { /* any length, any alignment: whole or ERANGE */
        memset(buffer, 0x5a, 4096);
        code = gethostbyname_r("many.example", &entry, buffer + length % 8, length, &found, &error);
        CHECK(buffer[length % 8 + length] == 0x5a);
        if (code == 0)
            break;
        CHECK(code == ERANGE);
    }
    CHECK(found == &entry && !strcmp(entry.h_name, "many.example"));
    for (length = 0; entry.h_addr_list[length]; length++)
        CHECK(((unsigned char *)entry.h_addr_list[length])[3] == length + 1);
    CHECK(length == 40);
    CHECK(gethostbyname2_r("missing.example", AF_INET6, &entry, buffer, 4096, &found, &error) == 0);
    CHECK(found == NULL && error == HOST_NOT_FOUND);
    CHECK(gethostbyname_r("failing.example", &entry, buffer, 4096, &found, &error) == EAGAIN && error == TRY_AGAIN);
    CHECK(gethostbyaddr_r("\xc0\x00\x02\x01", 4, AF_INET, &entry, buffer, 4096, &found, &error) == 0);
    CHECK(found && !strcmp(found->h_name, "host.example"));
    free(buffer);
}

static void names(void)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(80) };
    char host[64], service[16], tiny[4];
    inet_pton(AF_INET, "192.0.2.1", &address.sin_addr);
#define NAME(host, size, service, service_size, flags) \
    getnameinfo((struct sockaddr *)&address, sizeof address, host, size, service, service_size, flags)
    CHECK(NAME(host, sizeof host, service, sizeof service, NI_NUMERICSERV) == 0);
    CHECK(!strcmp(host, "host.example") && !strcmp(service, "80"));
    CHECK(NAME(tiny, sizeof tiny, NULL, 0, 0) == EAI_OVERFLOW);
    CHECK(NAME(host, sizeof host, NULL, 0, NI_NUMERICHOST) == 0 && !strcmp(host, "192.0.2.1"));
    inet_pton(AF_INET, "192.0.2.9", &address.sin_addr);
    CHECK(NAME(host, sizeof host, NULL, 0, 0) == 0 && !strcmp(host, "192.0.2.9"));
    CHECK(NAME(host, sizeof host, NULL, 0, NI_NAMEREQD) == EAI_NONAME);
    CHECK(getnameinfo((struct sockaddr *)&address, 3, host, sizeof host, NULL, 0, 0) == EAI_FAMILY);
}

/* The child's look-ups are its own, and leave the parent's link alone. */
static void forks(void)
{
    for (int round = 0; round < 3; round++) {
        int status;
        pid_t child = fork();
        if (child == 0)
            _exit(gethostbyname("v4.example") && gethostbyname("host.example") ? 0 : 1);
        CHECK(gethostbyname("v4.example"));
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
        CHECK(gethostbyname("host.example"));
    }
}

int main(void)
{
    look_up("host.example", NULL, 0, AF_UNSPEC, 0);
    look_up("host.example", "80", AI_CANONNAME, AF_INET, SOCK_STREAM);
    look_up("alias.example", "http", AI_CANONNAME, AF_INET6, SOCK_STREAM);
    look_up("v4.example", NULL, AI_V4MAPPED, AF_INET6, SOCK_DGRAM);
    look_up("host.example", NULL, AI_V4MAPPED | AI_ALL, AF_INET6, SOCK_DGRAM);
    look_up("v4.example", NULL, 0, AF_INET6, SOCK_STREAM);
    look_up("missing.example", NULL, 0, AF_UNSPEC, SOCK_STREAM);
    look_up("failing.example", NULL, 0, AF_UNSPEC, SOCK_STREAM);
    look_up("192.0.2.7", "53", 0, AF_UNSPEC, SOCK_DGRAM);
    look_up("host.example", NULL, AI_NUMERICHOST, AF_UNSPEC, SOCK_STREAM);
    look_up("host.example", "no-such-service", 0, AF_UNSPEC, SOCK_STREAM);
    look_up("host.example", NULL, 0, AF_UNSPEC, 99);
    look_up("host.example", NULL, 0, 99, SOCK_STREAM);
    hosts();
    names();
    forks();
    printf("all rules hold\n");
    return 0;
}
