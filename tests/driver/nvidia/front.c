/*
 * The Vulkan driver that the loader opens: loads NVK with stub.c in front of it, and forwards to it.
 *
 * A program that also uses OpenGL has the real libdrm among its global symbols, which would win. So NVK
 * and the stub are loaded with symbols of their own first, which only dlopen can ask for.
 */
#define _GNU_SOURCE /* RTLD_DEEPBIND, dladdr */
#define VK_NO_PROTOTYPES
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <vulkan/vulkan_core.h>

typedef VkResult (*negotiate)(uint32_t *);
typedef PFN_vkVoidFunction (*get_proc)(VkInstance, const char *);
VkResult vk_icdNegotiateLoaderICDInterfaceVersion(uint32_t *);
PFN_vkVoidFunction vk_icdGetInstanceProcAddr(VkInstance, const char *);
PFN_vkVoidFunction vk_icdGetPhysicalDeviceProcAddr(VkInstance, const char *);

static void *driver(const char *name)
{
    static void *loaded;
    Dl_info self;
    char path[4096];
    if (!loaded && dladdr((void *)&loaded, &self)) {
        /* Next to this file. */
        const char *end = strrchr(self.dli_fname, '/');
        int folder = end ? (int)(end - self.dli_fname) : 0;
        snprintf(path, sizeof path, "%.*s/libwgpt_nvk.so", folder, self.dli_fname);
        loaded = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
        if (!loaded)
            fprintf(stderr, "nvidia stub: %s\n", dlerror());
    }
    return loaded ? dlsym(loaded, name) : NULL;
}

VkResult vk_icdNegotiateLoaderICDInterfaceVersion(uint32_t *version)
{
    negotiate next = (negotiate)driver("vk_icdNegotiateLoaderICDInterfaceVersion");
    return next ? next(version) : VK_ERROR_INCOMPATIBLE_DRIVER;
}

PFN_vkVoidFunction vk_icdGetInstanceProcAddr(VkInstance instance, const char *name)
{
    get_proc next = (get_proc)driver("vk_icdGetInstanceProcAddr");
    return next ? next(instance, name) : NULL;
}

PFN_vkVoidFunction vk_icdGetPhysicalDeviceProcAddr(VkInstance instance, const char *name)
{
    get_proc next = (get_proc)driver("vk_icdGetPhysicalDeviceProcAddr");
    return next ? next(instance, name) : NULL;
}
