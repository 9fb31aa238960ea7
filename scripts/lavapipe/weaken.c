// weaken LIBRARY...: makes the glibc versions that each library demands, and this machine lacks,
// optional, so that the loader accepts the library. Symbols of those versions must come from elsewhere.
#include <elf.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// The minor version of this machine's glibc 2.
static int have;

static void weaken(unsigned char *file) {
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)file;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(file + header->e_shoff);
    for (int i = 0; i < header->e_shnum; i++) {
        if (sections[i].sh_type != SHT_GNU_verneed)
            continue;
        const char *names = (const char *)file + sections[sections[i].sh_link].sh_offset;
        unsigned char *at = file + sections[i].sh_offset;
        for (unsigned left = sections[i].sh_info; left > 0; left--) {
            const Elf64_Verneed *library = (const Elf64_Verneed *)at;
            unsigned char *entry = at + library->vn_aux;
            for (unsigned versions = library->vn_cnt; versions > 0; versions--) {
                Elf64_Vernaux *version = (Elf64_Vernaux *)entry;
                int minor;
                if (sscanf(names + version->vna_name, "GLIBC_2.%d", &minor) == 1 && minor > have)
                    version->vna_flags |= VER_FLG_WEAK;
                entry += version->vna_next;
            }
            at += library->vn_next;
        }
    }
}

int main(int count, char **paths) {
    if (sscanf(gnu_get_libc_version(), "2.%d", &have) != 1)
        return 1;
    for (int i = 1; i < count; i++) {
        struct stat status;
        int file = open(paths[i], O_RDWR);
        if (file < 0 || fstat(file, &status) != 0) {
            perror(paths[i]);
            return 1;
        }
        void *bytes = mmap(NULL, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (bytes == MAP_FAILED) {
            perror(paths[i]);
            return 1;
        }
        // Some files are scripts for the linker.
        if (status.st_size > (off_t)sizeof(Elf64_Ehdr) && memcmp(bytes, ELFMAG, SELFMAG) == 0)
            weaken(bytes);
        munmap(bytes, status.st_size);
        close(file);
    }
    return 0;
}
