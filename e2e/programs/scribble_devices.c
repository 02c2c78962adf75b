/* A hostile guest: writes whatever it likes into the region and the registers of every device that an end of a channel is, and rings every
 * number that there is. Says how many devices it found, and whether it came to its end.
 *
 *   scribble-devices ROUNDS
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEVICES "/sys/bus/pci/devices"
#define MOST_DEVICES 64

struct device {
    volatile uint32_t *registers;
    volatile uint64_t *region;
    size_t bytes;
};

static uint64_t state = 0x9e3779b97f4a7c15;

static uint64_t next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static int is(const char *name, const char *file, const char *wanted)
{
    char path[512], text[32] = "";
    snprintf(path, sizeof path, DEVICES "/%s/%s", name, file);
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        return 0;
    ssize_t count = read(fd, text, sizeof text - 1);
    close(fd);
    return count > 0 && strncmp(text, wanted, strlen(wanted)) == 0;
}

static void *map(const char *name, const char *file, size_t *bytes)
{
    char path[512];
    struct stat found;
    snprintf(path, sizeof path, DEVICES "/%s/%s", name, file);
    int fd = open(path, O_RDWR);
    if (fd < 0 || fstat(fd, &found) < 0)
        return NULL;
    *bytes = found.st_size;
    void *place = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return place == MAP_FAILED ? NULL : place;
}

static int find(struct device *devices)
{
    int count = 0;
    struct dirent *entry;
    DIR *folder = opendir(DEVICES);
    while (folder && (entry = readdir(folder)) && count < MOST_DEVICES) {
        size_t bytes;
        if (!is(entry->d_name, "vendor", "0x1af4") || !is(entry->d_name, "device", "0x1110"))
            continue;
        devices[count].registers = map(entry->d_name, "resource0", &bytes);
        devices[count].region = map(entry->d_name, "resource2", &devices[count].bytes);
        if (devices[count].registers && devices[count].region)
            count++;
        else
            perror(entry->d_name);
    }
    return count;
}

/* Anything anywhere, but most of it near the begin, where the header and the rings' first records are. */
static void scribble(struct device *device)
{
    size_t words = device->bytes / 8;
    for (int i = 0; i < 4096; i++) {
        uint64_t where = next(), what = next();
        size_t most = where & 1 ? words : 1024;
        if (what & 2)
            what &= 0xffff;
        device->region[(where >> 8) % most] = what;
    }
    for (int i = 0; i < 64; i++) {
        uint64_t value = next();
        device->registers[value % 4] = value >> 16;
        /* Every peer with a small number, every vector with one. */
        device->registers[3] = (uint32_t)(value >> 32 & 3) << 16 | (uint32_t)(value >> 40 & 3);
    }
}

int main(int count, char **words)
{
    static struct device devices[MOST_DEVICES];
    int found = find(devices), rounds = count > 1 ? atoi(words[1]) : 1;
    printf("scribbling on %d\n", found);
    fflush(stdout);
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < found; i++)
            scribble(&devices[i]);
    printf("scribbled on %d\n", found);
    return found == 0;
}
