/* Compiles kernels with a Vulkan driver and prints what became of them.
 *
 *   compile DRIVER.so KERNEL.spv...
 *
 * The driver is loaded without Vulkan's loader, and its first device with the features that wgpu asks
 * for. Each kernel is one compute pipeline, of its first entry point. As in src/gpu/device/adapter/vulkan,
 * those on cooperative matrices have no checks of bounds. The output has a line `device NAME`, then for each
 * kernel
 *
 *   kernel NAME               before it is compiled, so that a crash has a name
 *   seconds S
 *   subgroup N
 *   KEY = VALUE               a line for each statistic of the driver
 *   text                      then the assembly's lines, each with a tab in front
 *
 * or `error CODE` in their place. Exits with 1 if the driver cannot be used.
 */
#define VK_NO_PROTOTYPES
#include <dlfcn.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <vulkan/vulkan_core.h>

/* Headers before 1.3.255 lack cooperative matrices. */
typedef struct {
    uint32_t type;
    void *next;
    VkBool32 matrices, robust;
} MatrixFeatures;
enum { MATRIX_FEATURES = 1000506000 };

static PFN_vkGetInstanceProcAddr get_instance;
static VkInstance instance;
static PFN_vkGetDeviceProcAddr get_device;
static VkDevice device;
static bool can_omit_checks;

#define OF_INSTANCE(name) PFN_vk##name name = (PFN_vk##name)get_instance(instance, "vk" #name)
#define OF_DEVICE(name) PFN_vk##name name = (PFN_vk##name)get_device(device, "vk" #name)

static void *allocated(size_t count, size_t size)
{
    void *memory = calloc(count ? count : 1, size);
    if (!memory)
        abort();
    return memory;
}

static int fail(const char *what, const char *why)
{
    fprintf(stderr, "error: %s: %s\n", what, why);
    return 1;
}

/* ---- The device ------------------------------------------------------------------------------ */

static int open_instance(const char *library)
{
    void *driver = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!driver)
        return fail(library, dlerror());
    get_instance = (PFN_vkGetInstanceProcAddr)dlsym(driver, "vk_icdGetInstanceProcAddr");
    if (!get_instance)
        return fail(library, "not a Vulkan driver");
    VkResult (*negotiate)(uint32_t *) =
        (VkResult(*)(uint32_t *))dlsym(driver, "vk_icdNegotiateLoaderICDInterfaceVersion");
    uint32_t version = 5;
    if (negotiate)
        negotiate(&version);
    OF_INSTANCE(CreateInstance);
    VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                     .apiVersion = VK_API_VERSION_1_3};
    VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                 .pApplicationInfo = &application};
    if (CreateInstance(&info, NULL, &instance))
        return fail(library, "it makes no instance");
    get_device = (PFN_vkGetDeviceProcAddr)get_instance(instance, "vkGetDeviceProcAddr");
    return 0;
}

/* Opens the first device with all features of Vulkan 1.3, and those extensions below that it has. */
static int open_device(void)
{
    OF_INSTANCE(EnumeratePhysicalDevices);
    OF_INSTANCE(GetPhysicalDeviceProperties);
    OF_INSTANCE(GetPhysicalDeviceFeatures2);
    OF_INSTANCE(EnumerateDeviceExtensionProperties);
    OF_INSTANCE(CreateDevice);
    uint32_t count = 1;
    VkPhysicalDevice physical;
    if (EnumeratePhysicalDevices(instance, &count, &physical) < 0 || !count)
        return fail("Vulkan", "no device");
    VkPhysicalDeviceProperties properties;
    GetPhysicalDeviceProperties(physical, &properties);
    printf("device %s\n", properties.deviceName);

    MatrixFeatures matrices = {.type = MATRIX_FEATURES};
    VkPhysicalDeviceRobustness2FeaturesEXT robustness = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ROBUSTNESS_2_FEATURES_EXT};
    VkPhysicalDevicePipelineRobustnessFeaturesEXT of_pipelines = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_ROBUSTNESS_FEATURES_EXT};
    VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR executables = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR};
    struct {
        const char *name;
        VkBaseOutStructure *features;
    } optional[] = {{"VK_KHR_cooperative_matrix", (VkBaseOutStructure *)&matrices},
                    {"VK_EXT_robustness2", (VkBaseOutStructure *)&robustness},
                    {"VK_EXT_pipeline_robustness", (VkBaseOutStructure *)&of_pipelines},
                    {"VK_KHR_pipeline_executable_properties", (VkBaseOutStructure *)&executables}};
    VkPhysicalDeviceVulkan13Features v13 = {.sType =
                                                VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES};
    VkPhysicalDeviceVulkan12Features v12 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES, .pNext = &v13};
    VkPhysicalDeviceVulkan11Features v11 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES, .pNext = &v12};
    VkPhysicalDeviceFeatures2 features = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                                          .pNext = &v11};

    EnumerateDeviceExtensionProperties(physical, NULL, &count, NULL);
    VkExtensionProperties *listed = allocated(count, sizeof *listed);
    EnumerateDeviceExtensionProperties(physical, NULL, &count, listed);
    const char *enabled[sizeof optional / sizeof *optional];
    uint32_t enabled_count = 0;
    VkBaseOutStructure *last = (VkBaseOutStructure *)&v13;
    for (size_t i = 0; i < sizeof optional / sizeof *optional; i++)
        for (uint32_t j = 0; j < count; j++)
            if (!strcmp(listed[j].extensionName, optional[i].name)) {
                enabled[enabled_count++] = optional[i].name;
                last = last->pNext = optional[i].features;
            }
    free(listed);
    GetPhysicalDeviceFeatures2(physical, &features);
    if (!executables.pipelineExecutableInfo)
        return fail(properties.deviceName, "it tells nothing about its pipelines");
    can_omit_checks = of_pipelines.pipelineRobustness;

    float priority = 1;
    VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                     .queueCount = 1,
                                     .pQueuePriorities = &priority};
    VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                               .pNext = &features,
                               .queueCreateInfoCount = 1,
                               .pQueueCreateInfos = &queue,
                               .enabledExtensionCount = enabled_count,
                               .ppEnabledExtensionNames = enabled};
    if (CreateDevice(physical, &info, NULL, &device))
        return fail(properties.deviceName, "it does not open");
    return 0;
}

/* ---- A kernel -------------------------------------------------------------------------------- */

static uint32_t *read_words(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END))
        return NULL;
    *bytes = (size_t)ftell(file);
    rewind(file);
    uint32_t *words = allocated(*bytes / 4 + 1, 4);
    bool complete = fread(words, 1, *bytes, file) == *bytes && *bytes >= 20 && *bytes % 4 == 0;
    fclose(file);
    return complete ? words : NULL;
}

/* Returns the descriptors of set 0, found in the decorations and variables of a module, and the name
 * of its first entry point. */
static VkDescriptorSetLayoutBinding *interface_of(const uint32_t *words, size_t count,
                                                  uint32_t *found, const char **entry)
{
    enum { ENTRY_POINT = 15, DECORATE = 71, BINDING = 33, VARIABLE = 59, UNIFORM = 2, STORAGE = 12 };
    uint32_t bound = words[3], *binding = allocated(bound, sizeof *binding);
    VkDescriptorSetLayoutBinding *list = allocated(bound, sizeof *list);
    *found = 0;
    *entry = NULL;
    for (size_t at = 5; at < count && words[at] >> 16; at += words[at] >> 16) {
        const uint32_t *op = &words[at], code = *op & 0xffff;
        if (code == ENTRY_POINT && !*entry)
            *entry = (const char *)&op[3];
        if (code == DECORATE && op[2] == BINDING && op[1] < bound)
            binding[op[1]] = op[3];
        if (code == VARIABLE && (op[3] == UNIFORM || op[3] == STORAGE) && op[2] < bound)
            list[(*found)++] = (VkDescriptorSetLayoutBinding){
                .binding = binding[op[2]],
                .descriptorType = op[3] == UNIFORM ? VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER
                                                   : VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                .descriptorCount = 1,
                .stageFlags = VK_SHADER_STAGE_COMPUTE_BIT};
    }
    free(binding);
    return list;
}

/* Only kernels with cooperative matrices declare Vulkan's memory model. */
static bool has_matrices(const uint32_t *words, size_t count)
{
    enum { MEMORY_MODEL = 14, VULKAN = 3 };
    for (size_t at = 5; at < count && words[at] >> 16; at += words[at] >> 16)
        if ((words[at] & 0xffff) == MEMORY_MODEL)
            return words[at + 2] == VULKAN;
    return false;
}

static void print_statistics(const VkPipelineExecutableInfoKHR *which)
{
    OF_DEVICE(GetPipelineExecutableStatisticsKHR);
    uint32_t count = 0;
    GetPipelineExecutableStatisticsKHR(device, which, &count, NULL);
    VkPipelineExecutableStatisticKHR *all = allocated(count, sizeof *all);
    for (uint32_t i = 0; i < count; i++)
        all[i].sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR;
    GetPipelineExecutableStatisticsKHR(device, which, &count, all);
    for (uint32_t i = 0; i < count; i++) {
        printf("%s = ", all[i].name);
        switch (all[i].format) {
        case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_INT64_KHR:
            printf("%" PRId64 "\n", all[i].value.i64);
            break;
        case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_FLOAT64_KHR:
            printf("%g\n", all[i].value.f64);
            break;
        default: printf("%" PRIu64 "\n", all[i].value.u64);
        }
    }
    free(all);
}

static void print_assembly(const VkPipelineExecutableInfoKHR *which)
{
    OF_DEVICE(GetPipelineExecutableInternalRepresentationsKHR);
    uint32_t count = 0;
    GetPipelineExecutableInternalRepresentationsKHR(device, which, &count, NULL);
    VkPipelineExecutableInternalRepresentationKHR *all = allocated(count, sizeof *all);
    for (uint32_t i = 0; i < count; i++)
        all[i].sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INTERNAL_REPRESENTATION_KHR;
    /* The first call gives the sizes, the second the texts. */
    GetPipelineExecutableInternalRepresentationsKHR(device, which, &count, all);
    for (uint32_t i = 0; i < count; i++)
        all[i].pData = allocated(all[i].dataSize + 1, 1);
    GetPipelineExecutableInternalRepresentationsKHR(device, which, &count, all);
    for (uint32_t i = 0; i < count; i++) {
        char *rest = strstr(all[i].name, "ssembly") ? all[i].pData : NULL, *line;
        if (rest)
            puts("text");
        while ((line = strsep(&rest, "\n")))
            printf("\t%s\n", line);
        free(all[i].pData);
    }
    free(all);
}

static VkResult make_pipeline(const uint32_t *words, size_t bytes, VkPipeline *pipeline)
{
    OF_DEVICE(CreateShaderModule);
    OF_DEVICE(CreateDescriptorSetLayout);
    OF_DEVICE(CreatePipelineLayout);
    OF_DEVICE(CreateComputePipelines);
    OF_DEVICE(DestroyShaderModule);
    VkShaderModuleCreateInfo module = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                       .codeSize = bytes,
                                       .pCode = words};
    VkDescriptorSetLayoutCreateInfo set = {.sType =
                                               VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO};
    VkDescriptorSetLayout layout;
    VkPipelineLayoutCreateInfo of_sets = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                          .setLayoutCount = 1,
                                          .pSetLayouts = &layout};
    VkComputePipelineCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .flags = VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR |
                 VK_PIPELINE_CREATE_CAPTURE_INTERNAL_REPRESENTATIONS_BIT_KHR,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .flags = VK_PIPELINE_SHADER_STAGE_CREATE_ALLOW_VARYING_SUBGROUP_SIZE_BIT,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT}};
    VkPipelineRobustnessCreateInfoEXT unchecked = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_ROBUSTNESS_CREATE_INFO_EXT,
        .storageBuffers = VK_PIPELINE_ROBUSTNESS_BUFFER_BEHAVIOR_DISABLED_EXT,
        .uniformBuffers = VK_PIPELINE_ROBUSTNESS_BUFFER_BEHAVIOR_DISABLED_EXT};
    if (can_omit_checks && has_matrices(words, bytes / 4))
        info.pNext = &unchecked;
    set.pBindings = interface_of(words, bytes / 4, &set.bindingCount, &info.stage.pName);
    VkResult result = CreateShaderModule(device, &module, NULL, &info.stage.module);
    if (!result)
        result = CreateDescriptorSetLayout(device, &set, NULL, &layout);
    if (!result)
        result = CreatePipelineLayout(device, &of_sets, NULL, &info.layout);
    if (!result)
        result = CreateComputePipelines(device, VK_NULL_HANDLE, 1, &info, NULL, pipeline);
    DestroyShaderModule(device, info.stage.module, NULL);
    free((void *)set.pBindings);
    return result;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void compile(const char *path)
{
    OF_DEVICE(GetPipelineExecutablePropertiesKHR);
    OF_DEVICE(DestroyPipeline);
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    const char *end = strrchr(name, '.');
    printf("kernel %.*s\n", (int)(end ? end - name : (long)strlen(name)), name);
    fflush(stdout);
    size_t bytes;
    uint32_t *words = read_words(path, &bytes);
    if (!words) {
        puts("error not a SPIR-V module");
        return;
    }
    VkPipeline pipeline = VK_NULL_HANDLE;
    double start = now();
    VkResult result = make_pipeline(words, bytes, &pipeline);
    free(words);
    if (result) {
        printf("error %d\n", result);
        return;
    }
    printf("seconds %.3f\n", now() - start);
    VkPipelineInfoKHR of_pipeline = {.sType = VK_STRUCTURE_TYPE_PIPELINE_INFO_KHR,
                                     .pipeline = pipeline};
    uint32_t count = 1;
    VkPipelineExecutablePropertiesKHR executable = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_PROPERTIES_KHR};
    GetPipelineExecutablePropertiesKHR(device, &of_pipeline, &count, &executable);
    printf("subgroup %u\n", executable.subgroupSize);
    VkPipelineExecutableInfoKHR which = {.sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR,
                                         .pipeline = pipeline};
    print_statistics(&which);
    print_assembly(&which);
    DestroyPipeline(device, pipeline, NULL);
}

int main(int count, char **arguments)
{
    if (count < 2)
        return fail("usage", "compile DRIVER.so KERNEL.spv...");
    int failed = open_instance(arguments[1]);
    if (!failed)
        failed = open_device();
    for (int i = 2; i < count && !failed; i++)
        compile(arguments[i]);
    return failed;
}
