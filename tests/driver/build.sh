#!/bin/sh
# Compiles the driver into a folder and writes the manifest that the Vulkan loader reads:
#   build.sh OUT_DIR
# CC names the compiler, FAULT_DRIVER the driver to wrap.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:?write the folder to build into}"
out=$(cd "$1" && pwd)
driver=${FAULT_DRIVER:-libvulkan_lvp.so}

${CC:-cc} -std=c11 -O2 -Wall -Wextra -Werror -shared -fPIC \
    -o "$out/libfault_icd.so" "$here/fault_icd.c" -ldl -pthread

# The loader relies on the manifest's Vulkan version, so it is read from the real driver.
cat >"$out/version.c" <<'END'
#define VK_NO_PROTOTYPES
#include <dlfcn.h>
#include <stdio.h>
#include <vulkan/vulkan_core.h>

int main(int argc, char **argv)
{
    void *lib = argc > 1 ? dlopen(argv[1], RTLD_LAZY) : NULL;
    PFN_vkGetInstanceProcAddr get =
        lib ? (PFN_vkGetInstanceProcAddr)dlsym(lib, "vk_icdGetInstanceProcAddr") : NULL;
    PFN_vkEnumerateInstanceVersion ask =
        get ? (PFN_vkEnumerateInstanceVersion)get(NULL, "vkEnumerateInstanceVersion") : NULL;
    uint32_t v = 0;
    if (!ask || ask(&v) != VK_SUCCESS) {
        fprintf(stderr, "build.sh: %s is not a Vulkan driver\n", argc > 1 ? argv[1] : "");
        return 1;
    }
    printf("%u.%u.%u\n", VK_API_VERSION_MAJOR(v), VK_API_VERSION_MINOR(v), VK_API_VERSION_PATCH(v));
}
END
${CC:-cc} -std=c11 -o "$out/version" "$out/version.c" -ldl
version=$("$out/version" "$driver")
rm "$out/version" "$out/version.c"

cat >"$out/manifest.json" <<END
{
    "file_format_version": "1.0.0",
    "ICD": { "library_path": "$out/libfault_icd.so", "api_version": "$version" }
}
END
