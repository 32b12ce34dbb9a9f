/* Relocates the program before its first function runs.

   The linker packs the list of addresses to relocate: 1.4 MB become 30 KB. The dynamic loader of glibc reads such lists
   since version 2.36, and a program that wants this does not start with older ones. So the list has a tag that the
   loader ignores, and the program starts here. */

#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/syscall.h>

/* The tags of Android for the packed list, which the linker uses. */
enum { LIST = 0x6fffe000, LIST_SIZE = 0x6fffe001 };

/* From the linker. */
extern const ElfW(Ehdr) __ehdr_start __attribute__((visibility("hidden")));
extern ElfW(Dyn) _DYNAMIC[] __attribute__((visibility("hidden")));

/* No function of another library is known yet. */
static long call_kernel(long number, unsigned long first, unsigned long second, unsigned long third) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(first), "S"(second), "d"(third)
                     : "rcx", "r11", "memory");
    return result;
}

static void protect(unsigned long begin, unsigned long length, unsigned long access) {
    static const char problem[] = "skein: the kernel does not let the program relocate itself\n";
    if (call_kernel(SYS_mprotect, begin, length, access) == 0) return;
    call_kernel(SYS_write, 2, (unsigned long)problem, sizeof problem - 1);
    call_kernel(SYS_exit_group, 1, 0, 0);
}

/* Adds the base address to a word, and to its copy in the memory of the first thread if it is thread-local. */
static void add_base(unsigned long *word, unsigned long base, const ElfW(Phdr) *tls) {
    *word += base;
    unsigned long at = (unsigned long)word - base - (tls ? tls->p_vaddr : 0);
    if (!tls || at >= tls->p_filesz) return;
    unsigned long thread;
    __asm__("mov %%fs:0, %0" : "=r"(thread));
    unsigned long padding = -(tls->p_vaddr + tls->p_memsz) & (tls->p_align - 1);
    *(unsigned long *)(thread - tls->p_memsz - padding + at) += base;
}

__attribute__((used)) static void relocate(void) {
    const unsigned long base = (unsigned long)&__ehdr_start;
    const ElfW(Phdr) *header = (const void *)(base + __ehdr_start.e_phoff), *tls = 0;
    unsigned long begin = 0, length = 0;
    for (int at = 0; at < __ehdr_start.e_phnum; at++) {
        if (header[at].p_type == PT_TLS) tls = &header[at];
        if (header[at].p_type == PT_GNU_RELRO) {
            /* Whole pages, as the dynamic loader protects them. */
            begin = (base + header[at].p_vaddr) & -4096UL;
            length = ((base + header[at].p_vaddr + header[at].p_memsz) & -4096UL) - begin;
        }
    }
    const unsigned long *entry = 0;
    unsigned long size = 0;
    for (const ElfW(Dyn) *tag = _DYNAMIC; tag->d_tag != DT_NULL; tag++) {
        if (tag->d_tag == LIST) entry = (const void *)(base + tag->d_un.d_ptr);
        if (tag->d_tag == LIST_SIZE) size = tag->d_un.d_val;
    }
    protect(begin, length, PROT_READ | PROT_WRITE);
    /* One call is faster than a page fault for each of 250 pages. Kernels before 5.14 do not know it. */
    call_kernel(SYS_madvise, begin, length, MADV_POPULATE_WRITE);
    /* An even entry is the address of a word. The bits of an odd one stand for the 63 words that follow. */
    unsigned long *next = 0;
    for (const unsigned long *end = entry + size / sizeof *entry; entry < end; entry++) {
        if ((*entry & 1) == 0) {
            next = (unsigned long *)(base + *entry);
            add_base(next++, base, tls);
            continue;
        }
        unsigned long *word = next;
        for (unsigned long bits = *entry >> 1; bits != 0; bits >>= 1, word++)
            if (bits & 1) add_base(word, base, tls);
        next += 63;
    }
    protect(begin, length, PROT_READ);
}

/* The dynamic loader passes a function in %rdx. The stack is aligned to 16 bytes at the call. */
__asm__(".globl start_with_relocations\n"
        "start_with_relocations:\n"
        "push %rdx\npush %rdx\ncall relocate\npop %rdx\npop %rdx\njmp _start\n");
