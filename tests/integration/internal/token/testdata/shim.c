/*
 * A PKCS#11 module that passes everything on to another one, counts, and fails
 * as told. Beside the file it is loaded from, FILE:
 *
 *   FILE.module    the path of the other one
 *   FILE.calls     gets a line for each call of a function that is wrapped below: its name
 *   FILE.rules/F   what to do before function F, or instead of it:
 *
 *     crash         end with SIGSEGV
 *     hang          never return
 *     print         write a line to stdout; go on
 *     close         close all sessions of the token; go on
 *     return 0xA4   return that, CKR_PIN_LOCKED
 *     flags 0x40000 go on, then add these to the flags of the token (C_GetTokenInfo)
 *
 *   "once " before it: the first to come removes the file, and nobody else obeys it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long CK_RV, CK_ULONG;
typedef uintptr_t W; /* every argument of the functions here fits a machine word */

#define CKR_GENERAL_ERROR 5UL
#define TOKEN_FLAGS 96 /* where CK_TOKEN_INFO has them, after label, manufacturer, model and serial number */

/* PKCS#11 2.40, CK_FUNCTION_LIST: the order is the interface. */
#define FUNCTIONS(F) \
	F(C_Initialize) F(C_Finalize) F(C_GetInfo) F(C_GetFunctionList) F(C_GetSlotList) F(C_GetSlotInfo) \
	F(C_GetTokenInfo) F(C_GetMechanismList) F(C_GetMechanismInfo) F(C_InitToken) F(C_InitPIN) F(C_SetPIN) \
	F(C_OpenSession) F(C_CloseSession) F(C_CloseAllSessions) F(C_GetSessionInfo) F(C_GetOperationState) \
	F(C_SetOperationState) F(C_Login) F(C_Logout) F(C_CreateObject) F(C_CopyObject) F(C_DestroyObject) \
	F(C_GetObjectSize) F(C_GetAttributeValue) F(C_SetAttributeValue) F(C_FindObjectsInit) F(C_FindObjects) \
	F(C_FindObjectsFinal) F(C_EncryptInit) F(C_Encrypt) F(C_EncryptUpdate) F(C_EncryptFinal) F(C_DecryptInit) \
	F(C_Decrypt) F(C_DecryptUpdate) F(C_DecryptFinal) F(C_DigestInit) F(C_Digest) F(C_DigestUpdate) \
	F(C_DigestKey) F(C_DigestFinal) F(C_SignInit) F(C_Sign) F(C_SignUpdate) F(C_SignFinal) F(C_SignRecoverInit) \
	F(C_SignRecover) F(C_VerifyInit) F(C_Verify) F(C_VerifyUpdate) F(C_VerifyFinal) F(C_VerifyRecoverInit) \
	F(C_VerifyRecover) F(C_DigestEncryptUpdate) F(C_DecryptDigestUpdate) F(C_SignEncryptUpdate) \
	F(C_DecryptVerifyUpdate) F(C_GenerateKey) F(C_GenerateKeyPair) F(C_WrapKey) F(C_UnwrapKey) F(C_DeriveKey) \
	F(C_SeedRandom) F(C_GenerateRandom) F(C_GetFunctionStatus) F(C_CancelFunction) F(C_WaitForSlotEvent)

#define INDEX(name) I_##name,
enum { FUNCTIONS(INDEX) COUNT };

struct list {
	unsigned char major, minor;
	void (*f[COUNT])(void);
};

static struct list *other, ours;
static char base[PATH_MAX];
static W slot; /* of the newest session */

static void fail(const char *what) {
	fprintf(stderr, "shim: %s%s: %m\n", base, what);
	abort();
}

static int beside(const char *suffix, int flags) {
	char path[PATH_MAX + 64];
	snprintf(path, sizeof path, "%s%s", base, suffix);
	return open(path, flags | O_CLOEXEC, 0600);
}

static void note(const char *name) {
	char line[64];
	int n = snprintf(line, sizeof line, "%s\n", name), fd = beside(".calls", O_WRONLY | O_APPEND | O_CREAT);
	if (fd < 0 || write(fd, line, n) != n)
		fail(".calls");
	close(fd);
}

/* Reads the rule for a function into text; 0: there is none. */
static int read_rule(const char *name, char *text, size_t size) {
	char suffix[64], path[PATH_MAX + 64];
	snprintf(suffix, sizeof suffix, ".rules/%s", name);
	int fd = beside(suffix, O_RDONLY);
	if (fd < 0)
		return 0;
	ssize_t n = read(fd, text, size - 1);
	close(fd);
	if (n < 0)
		fail(suffix);
	text[n] = 0;
	if (strncmp(text, "once ", 5) != 0)
		return 1;
	memmove(text, text + 5, n - 5 + 1);
	snprintf(path, sizeof path, "%s%s", base, suffix);
	return unlink(path) == 0;
}

/* Counts a call and does what its rule says; 1: with that the call is over. The flags are to be added afterwards. */
static int over(const char *name, CK_RV *rv, CK_ULONG *flags) {
	char text[64];
	note(name);
	if (!read_rule(name, text, sizeof text))
		return 0;
	if (strcmp(text, "crash") == 0) {
		signal(SIGSEGV, SIG_DFL); /* whoever loaded us may catch it */
		raise(SIGSEGV);
	} else if (strcmp(text, "hang") == 0) {
		for (;;)
			pause();
	} else if (strcmp(text, "print") == 0) {
		printf("a word from the vendor\n");
		fflush(stdout);
	} else if (strcmp(text, "close") == 0) {
		((CK_RV (*)(W))other->f[I_C_CloseAllSessions])(slot);
	} else if (strncmp(text, "return ", 7) == 0) {
		*rv = strtoul(text + 7, NULL, 0);
		return 1;
	} else if (strncmp(text, "flags ", 6) == 0 && flags != NULL) {
		*flags = strtoul(text + 6, NULL, 0);
	} else {
		fprintf(stderr, "shim: no rule %s for %s\n", text, name);
		abort();
	}
	return 0;
}

#define WRAP(name, parameters, arguments) \
	static CK_RV name parameters { \
		CK_RV rv; \
		return over(#name, &rv, NULL) ? rv : ((CK_RV(*) parameters)other->f[I_##name])arguments; \
	}
#define WRAP1(name) WRAP(name, (W a), (a))
#define WRAP2(name) WRAP(name, (W a, W b), (a, b))
#define WRAP3(name) WRAP(name, (W a, W b, W c), (a, b, c))
#define WRAP4(name) WRAP(name, (W a, W b, W c, W d), (a, b, c, d))
#define WRAP5(name) WRAP(name, (W a, W b, W c, W d, W e), (a, b, c, d, e))
#define WRAP8(name) WRAP(name, (W a, W b, W c, W d, W e, W f, W g, W h), (a, b, c, d, e, f, g, h))

WRAP1(C_Initialize)
WRAP3(C_GetSlotList)
WRAP1(C_CloseSession)
WRAP4(C_Login)
WRAP4(C_CreateObject)
WRAP2(C_DestroyObject)
WRAP3(C_FindObjectsInit)
WRAP3(C_SignInit)
WRAP5(C_Sign)
WRAP8(C_GenerateKeyPair)

static CK_RV C_GetTokenInfo(W id, unsigned char *info) {
	CK_RV rv;
	CK_ULONG flags = 0;
	if (over("C_GetTokenInfo", &rv, &flags))
		return rv;
	rv = ((CK_RV(*)(W, unsigned char *))other->f[I_C_GetTokenInfo])(id, info);
	if (rv == 0)
		*(CK_ULONG *)(info + TOKEN_FLAGS) |= flags;
	return rv;
}

static CK_RV C_OpenSession(W id, W flags, W application, W notify, W session) {
	CK_RV rv;
	slot = id;
	if (over("C_OpenSession", &rv, NULL))
		return rv;
	return ((CK_RV(*)(W, W, W, W, W))other->f[I_C_OpenSession])(id, flags, application, notify, session);
}

#define OURS(name) ours.f[I_##name] = (void (*)(void))name;

CK_RV C_GetFunctionList(struct list **out) {
	Dl_info self;
	char path[PATH_MAX];
	if (other != NULL) {
		*out = &ours;
		return 0;
	}
	if (!dladdr((void *)C_GetFunctionList, &self) || !realpath(self.dli_fname, base))
		return CKR_GENERAL_ERROR;
	int fd = beside(".module", O_RDONLY);
	ssize_t n = fd < 0 ? -1 : read(fd, path, sizeof path - 1);
	if (n < 0)
		fail(".module");
	close(fd);
	path[n] = 0;
	void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	CK_RV (*list)(struct list **) = module ? (CK_RV(*)(struct list **))dlsym(module, "C_GetFunctionList") : NULL;
	if (list == NULL || list(&other) != 0)
		return CKR_GENERAL_ERROR;
	ours = *other;
	OURS(C_GetFunctionList) OURS(C_Initialize) OURS(C_GetSlotList) OURS(C_GetTokenInfo) OURS(C_OpenSession)
	OURS(C_CloseSession) OURS(C_Login) OURS(C_CreateObject) OURS(C_DestroyObject) OURS(C_FindObjectsInit)
	OURS(C_SignInit) OURS(C_Sign) OURS(C_GenerateKeyPair)
	*out = &ours;
	return 0;
}
