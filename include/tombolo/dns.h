/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * ioctl()s of a directory service's file `query` (usually /srv/dns/query).
 *
 * Each open file is a session with settings of its own; they begin as the domain's defaults. What an ioctl() sets, a
 * line written to the file sets as well ("ctl timeout 500ms"): see docs/directory.md. All calls return 0, or -1 with
 * errno: EINVAL for a value out of its bounds, an unknown flag or a reserved byte that is not zero, EACCES where the
 * domain lacks the verb `control`, ENOTTY for any other number. A refused call changes nothing.
 *
 *     #include <fcntl.h>
 *     #include <sys/ioctl.h>
 *     #include <tombolo/dns.h>
 *
 *     int fd = open("/srv/dns/query", O_RDWR);
 *     struct tombolo_dns_settings settings;
 *     if (fd >= 0 && ioctl(fd, TOMBOLO_DNS_GET_SETTINGS, &settings) == 0) {
 *         settings.timeout_ms = 500;
 *         ioctl(fd, TOMBOLO_DNS_SET_SETTINGS, &settings);
 *     }
 */
#ifndef TOMBOLO_DNS_H
#define TOMBOLO_DNS_H

#include <linux/ioctl.h>
#include <linux/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How answers look: `format` of struct tombolo_dns_settings. */
#define TOMBOLO_DNS_FORMAT_TEXT 0 /* NAME TTL TYPE DATA, a record a line */
#define TOMBOLO_DNS_FORMAT_JSON 1 /* a JSON object a line */

/* Bits of `flags`. */
#define TOMBOLO_DNS_FLAG_TRACE 1 /* where each request's time went is kept in /srv/self/trace */

/* What a session has set. Numbers are in the byte order of the machine. */
struct tombolo_dns_settings {
	__u32 timeout_ms;  /* how long one upstream may take, ms: 1 to 60000 */
	__u32 retries;     /* how often an upstream is asked again after a time-out: 0 to 10 */
	__u32 format;      /* TOMBOLO_DNS_FORMAT_... */
	__u32 flags;       /* TOMBOLO_DNS_FLAG_... */
	__u32 reserved[4]; /* zero */
};

/* A name server. */
struct tombolo_dns_upstream {
	__u16 family;      /* AF_INET or AF_INET6 */
	__u16 port;        /* in the byte order of the machine, not 0 */
	__u32 reserved;    /* zero */
	__u8 address[16];  /* as on the network; an IPv4 address in the first four bytes, the others zero */
};

/* A domain to append to names without a dot. */
struct tombolo_dns_search {
	char domain[256];  /* letters, digits, '-', '_' and dots; the bytes behind the text are zero */
};

/* The type byte of all of them: one that the kernel's list of numbers leaves free. */
#define TOMBOLO_DNS_TYPE 0xD7

/* Reads the settings that hold for this session. */
#define TOMBOLO_DNS_GET_SETTINGS _IOR(TOMBOLO_DNS_TYPE, 1, struct tombolo_dns_settings)
/* Sets all of them. */
#define TOMBOLO_DNS_SET_SETTINGS _IOW(TOMBOLO_DNS_TYPE, 2, struct tombolo_dns_settings)
/* Forgets the session's own upstreams: the service's are asked again. */
#define TOMBOLO_DNS_CLEAR_UPSTREAMS _IO(TOMBOLO_DNS_TYPE, 3)
/* Adds an upstream of the session's own, up to 8: from the first on, only they are asked, and nothing is remembered.
 * Needs the verb `control`. */
#define TOMBOLO_DNS_ADD_UPSTREAM _IOW(TOMBOLO_DNS_TYPE, 4, struct tombolo_dns_upstream)
/* Empties the session's search list. */
#define TOMBOLO_DNS_CLEAR_SEARCH _IO(TOMBOLO_DNS_TYPE, 5)
/* Appends a domain to the session's search list, up to 6. */
#define TOMBOLO_DNS_ADD_SEARCH _IOW(TOMBOLO_DNS_TYPE, 6, struct tombolo_dns_search)
/* Reads the number of this session, as the file `sessions` lists it and `ctl` takes it. */
#define TOMBOLO_DNS_GET_SESSION _IOR(TOMBOLO_DNS_TYPE, 7, __u64)

#ifdef __cplusplus
}
#endif

#endif /* TOMBOLO_DNS_H */
