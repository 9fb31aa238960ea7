/* Wine 8 lacks this library of Windows, from which Rust's standard library takes random numbers. */
#include <windows.h>

#include <ntsecapi.h>

__declspec(dllexport) BOOL WINAPI ProcessPrng(BYTE *buffer, SIZE_T length) {
    while (length > 0) {
        ULONG part = length < MAXLONG ? (ULONG)length : MAXLONG;
        if (!RtlGenRandom(buffer, part)) {
            return FALSE;
        }
        buffer += part;
        length -= part;
    }
    return TRUE;
}
