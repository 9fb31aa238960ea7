// The functions of glibc 2.38 that Debian 13's Mesa uses, for an older glibc: the C23 forms of the
// parsers, which differ only in binary numbers, and fmod, which got a new version.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <wchar.h>

#define PARSER(type, name) \
    type __isoc23_##name(const char *text, char **end, int base) { return name(text, end, base); }
PARSER(long, strtol)
PARSER(long long, strtoll)
PARSER(unsigned long, strtoul)
PARSER(unsigned long long, strtoull)
PARSER(intmax_t, strtoimax)
PARSER(uintmax_t, strtoumax)

#define SCANNER(name, source, with_list) \
    int __isoc23_##name(source from, const char *format, ...) { \
        va_list list; \
        va_start(list, format); \
        int count = with_list(from, format, list); \
        va_end(list); \
        return count; \
    }
SCANNER(sscanf, const char *, vsscanf)
SCANNER(fscanf, FILE *, vfscanf)

int __isoc23_vsscanf(const char *from, const char *format, va_list list) {
    return vsscanf(from, format, list);
}

static void *first_version(const char *name) {
    return dlvsym(dlopen("libm.so.6", RTLD_LAZY), name, "GLIBC_2.2.5");
}

double fmod(double x, double y) {
    double (*old)(double, double) = first_version("fmod");
    return old(x, y);
}

float fmodf(float x, float y) {
    float (*old)(float, float) = first_version("fmodf");
    return old(x, y);
}
