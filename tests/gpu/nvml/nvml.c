/* A stand-in of NVIDIA's management library: the calls that we make, answered from a file.

   The file is the one that NVML_STAND_IN names. Each line of it is a GPU, or a part of one (MIG),
   which has no number:

       uuid,name,bytes in all,bytes used,bytes reserved by the driver,percent busy or -1

   It is read again in each call, so that a test can change what a GPU is doing. The numbers of errors
   and the structures are those of NVIDIA's nvml.h. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, NO_LIBRARY = 12 };

typedef struct {
    char uuid[96], name[96];
    unsigned long long total, used, reserved;
    int busy;
} gpu;

typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned int gpu, memory; } rates;

/* A handle is a line's number and one more. */
static int line(int number, gpu *found) {
    const char *path = getenv("NVML_STAND_IN");
    FILE *file = path ? fopen(path, "r") : NULL;
    char text[512];
    int at = 0, result = NOT_FOUND;
    if (!file) return NO_LIBRARY;
    while (result != OK && fgets(text, sizeof text, file)) {
        if (sscanf(text, "%95[^,],%95[^,],%llu,%llu,%llu,%d", found->uuid, found->name,
                   &found->total, &found->used, &found->reserved, &found->busy) != 6) continue;
        if (at++ == number) result = OK;
    }
    fclose(file);
    return result;
}

static int of_handle(void *handle, gpu *found) { return line((int)(long)handle - 1, found); }

int nvmlInitWithFlags(unsigned int flags) {
    gpu first;
    (void)flags;
    return line(0, &first) == NO_LIBRARY ? NO_LIBRARY : OK;
}

int nvmlShutdown(void) { return OK; }

const char *nvmlErrorString(int code) {
    return code == NOT_SUPPORTED ? "Not Supported" : code == NOT_FOUND ? "Not Found" : "Error";
}

int nvmlDeviceGetCount_v2(unsigned int *count) {
    gpu each;
    *count = 0;
    for (int at = 0; line(at, &each) == OK; at++) *count += strncmp(each.uuid, "GPU-", 4) == 0;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle) {
    gpu each;
    for (int at = 0; line(at, &each) == OK; at++) {
        if (strncmp(each.uuid, "GPU-", 4) != 0) continue;
        if (index-- == 0) {
            *handle = (void *)(long)(at + 1);
            return OK;
        }
    }
    return INVALID;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    gpu each;
    for (int at = 0; line(at, &each) == OK; at++) {
        if (strcmp(each.uuid, uuid) == 0) {
            *handle = (void *)(long)(at + 1);
            return OK;
        }
    }
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(void *handle, char *text, unsigned int length) {
    gpu each;
    int result = of_handle(handle, &each);
    if (result == OK) snprintf(text, length, "%s", each.uuid);
    return result;
}

int nvmlDeviceGetName(void *handle, char *text, unsigned int length) {
    gpu each;
    int result = of_handle(handle, &each);
    if (result == OK) snprintf(text, length, "%s", each.name);
    return result;
}

/* As drivers from 510 on: this one counts what is reserved as used, the second version does not. */
int nvmlDeviceGetMemoryInfo(void *handle, memory_v1 *memory) {
    gpu each;
    int result = of_handle(handle, &each);
    if (result != OK) return result;
    memory->total = each.total;
    memory->used = each.used + each.reserved;
    memory->free = memory->total - memory->used;
    return OK;
}

int nvmlDeviceGetMemoryInfo_v2(void *handle, memory_v2 *memory) {
    gpu each;
    int result = of_handle(handle, &each);
    if (result != OK) return result;
    if (memory->version != (sizeof(memory_v2) | 2u << 24)) return INVALID;
    memory->total = each.total;
    memory->used = each.used;
    memory->reserved = each.reserved;
    memory->free = memory->total - memory->used - memory->reserved;
    return OK;
}

int nvmlDeviceGetUtilizationRates(void *handle, rates *busy) {
    gpu each;
    int result = of_handle(handle, &each);
    if (result != OK) return result;
    if (each.busy < 0) return NOT_SUPPORTED;
    busy->gpu = (unsigned int)each.busy;
    busy->memory = 0;
    return OK;
}
