/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Programs that take all numbers from 3 up for their own after a look-up, as daemons do, and look names up again. `daemons HOW` ends
 * with 0 if each look-up found what it should, and all files of the program are what they were. Run by programs.rs, which has a
 * folder made for it: its path is in FOLDER.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Numbers that are looked at: those of the library are above 1000 where the program may have so many. */
#define NUMBERS 4096
/* Files of the program. */
#define FILES 64

static void fail(int line, const char *what)
{
	fprintf(stderr, "line %d: %s; errno %d (%s)\n", line, what, errno, strerror(errno));
	_exit(1);
}

#define CHECK(what) ((what) ? (void)0 : fail(__LINE__, #what))

static int numbers[FILES], count;
static struct stat files[FILES];

/* A name with two addresses, which have to be put in order. */
static void look_up(void)
{
	struct addrinfo hints, *found, *each;
	int addresses = 0;
	memset(&hints, 0, sizeof hints);
	hints.ai_socktype = SOCK_STREAM;
	CHECK(getaddrinfo("host.example", "80", &hints, &found) == 0);
	for (each = found; each != NULL; each = each->ai_next)
		addresses++;
	freeaddrinfo(found);
	CHECK(addresses == 2);
}

static int open_file(int number)
{
	char path[300];
	int file;
	snprintf(path, sizeof path, "%s/file.%d", getenv("FOLDER"), number);
	CHECK((file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)) >= 0);
	CHECK(write(file, "untouched", 9) == 9 && lseek(file, 0, SEEK_SET) == 0);
	return file;
}

static void put_file_at(int number)
{
	int file = open_file(number);
	if (file != number) {
		CHECK(dup2(file, number) == number && close(file) == 0);
	}
	CHECK(count < FILES && fstat(number, &files[count]) == 0);
	numbers[count++] = number;
}

/* Puts files at all numbers that are open, and some at the lowest that are free. */
static void take_numbers(int close_first)
{
	int open_numbers[FILES], open_count = 0, i;
	count = 0;
	for (i = 3; i < NUMBERS; i++)
		if (fcntl(i, F_GETFD) != -1) {
			CHECK(open_count < FILES);
			open_numbers[open_count++] = i;
		}
	/* Else nothing is shown. */
	CHECK(open_count >= 5);
	if (close_first)
		closefrom(3);
	for (i = 0; i < open_count; i++)
		put_file_at(open_numbers[i]);
	for (i = 3; i < 8; i++)
		if (fcntl(i, F_GETFD) == -1)
			put_file_at(i);
}

/* Nobody has closed, replaced, read or written them. */
static void files_are_untouched(void)
{
	struct stat found;
	char bytes[16];
	int i;
	for (i = 0; i < count; i++) {
		CHECK(fstat(numbers[i], &found) == 0);
		CHECK(found.st_dev == files[i].st_dev && found.st_ino == files[i].st_ino);
		CHECK(lseek(numbers[i], 0, SEEK_CUR) == 0);
		CHECK(pread(numbers[i], bytes, sizeof bytes, 0) == 9 && memcmp(bytes, "untouched", 9) == 0);
		CHECK((fcntl(numbers[i], F_GETFL) & O_NONBLOCK) == 0);
	}
}

static void become_a_daemon(int close_first)
{
	int round;
	look_up();
	for (round = 0; round < 3; round++) {
		take_numbers(close_first);
		look_up();
		files_are_untouched();
		look_up();
		files_are_untouched();
	}
}

static void in_a_child(int close_first)
{
	int status = -1;
	pid_t child;
	look_up();
	CHECK((child = fork()) >= 0);
	if (child == 0) {
		take_numbers(close_first);
		look_up();
		files_are_untouched();
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	/* The parent's link is none of the child's business. */
	look_up();
}

/* A program that counts on the lowest free number. */
static void count_numbers(void)
{
	int before = open_file(0), after;
	CHECK(close(before) == 0);
	look_up();
	after = open_file(0);
	CHECK(after == before && close(after) == 0);
}

int main(int arguments, char **argument)
{
	const char *how = arguments == 2 ? argument[1] : "";
	alarm(120);
	if (strcmp(how, "closefrom") == 0)
		become_a_daemon(1);
	else if (strcmp(how, "dup2") == 0)
		become_a_daemon(0);
	else if (strcmp(how, "fork-closefrom") == 0)
		in_a_child(1);
	else if (strcmp(how, "fork-dup2") == 0)
		in_a_child(0);
	else if (strcmp(how, "lowest") == 0)
		count_numbers();
	else
		return 2;
	return 0;
}
