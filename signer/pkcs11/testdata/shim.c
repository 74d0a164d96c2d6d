/* A PKCS#11 module that passes everything on to another one, and has faults when it is told
 * to. SHIM_MODULE is the other module, SHIM_DIR a directory:
 *
 *   log                  what was called, one line each, appended to
 *   NAME, NAME.once      a fault; its text is a number in hexadecimal
 *
 * Faults: C_Xxx (the call returns the number), crash-C_Xxx, hang-C_Xxx, print-C_Xxx (prints
 * to standard output), close-all-C_Xxx (closes all sessions before the call), token-flags (is
 * added to the flags of every token), max-sessions (is the number of sessions it admits to).
 * A fault with .once goes away when it happens.
 *
 * The function list (CK_FUNCTION_LIST, PKCS#11 2.40) is a version and 68 pointers. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef unsigned long ulong;
typedef unsigned char byte;

struct list {
	struct { byte major, minor; } version;
	void *fn[68];
};

enum { Initialize = 0, GetFunctionList = 3, GetSlotList = 4, GetTokenInfo = 6, OpenSession = 12, CloseSession = 13,
	CloseAllSessions = 14, Login = 18, GenerateKeyPair = 59, GetAttributeValue = 24, CreateObject = 20, SignInit = 42, Sign = 43 };

static struct list *real, ours;
static ulong last_slot;

static void note(const char *what, ulong n)
{
	char path[4096], line[128];
	snprintf(path, sizeof path, "%s/log", getenv("SHIM_DIR"));
	int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
	int len = snprintf(line, sizeof line, "%s %lu\n", what, n);
	if (fd >= 0 && write(fd, line, len) != len)
		abort();
	close(fd);
}

/* fault tells whether a fault is on, and its number. */
static int fault(const char *kind, const char *call, ulong *n)
{
	char path[4096], once[4200], text[64] = "";
	snprintf(path, sizeof path, "%s/%s%s", getenv("SHIM_DIR"), kind, call);
	snprintf(once, sizeof once, "%s.once", path);
	int fd = open(once, O_RDONLY);
	if (fd >= 0 && unlink(once) != 0) { /* another thread was faster */
		close(fd);
		fd = -1;
	}
	if (fd < 0)
		fd = open(path, O_RDONLY);
	if (fd < 0)
		return 0;
	ssize_t len = read(fd, text, sizeof text - 1);
	close(fd);
	*n = len > 0 ? strtoul(text, NULL, 16) : 0;
	return 1;
}

static ulong before(const char *call)
{
	ulong n;
	if (fault("print-", call, &n)) {
		printf("hello from the module\n");
		fflush(stdout);
	}
	if (fault("hang-", call, &n)) {
		note("hang", 0);
		for (;;)
			pause();
	}
	if (fault("crash-", call, &n))
		*(volatile int *)8 = 1;
	if (fault("close-all-", call, &n))
		((ulong (*)(ulong))real->fn[CloseAllSessions])(last_slot);
	if (fault("", call, &n))
		return n;
	return 0;
}

#define BEFORE(name) \
	ulong rv = before(name); \
	if (rv) return rv

static ulong initialize(void *args)
{
	note("C_Initialize", 0);
	BEFORE("C_Initialize");
	return ((ulong (*)(void *))real->fn[Initialize])(args);
}

static ulong get_slot_list(byte present, ulong *slots, ulong *n)
{
	BEFORE("C_GetSlotList");
	return ((ulong (*)(byte, ulong *, ulong *))real->fn[GetSlotList])(present, slots, n);
}

/* CK_TOKEN_INFO: four padded strings of 32, 32, 16 and 16 bytes, flags, then limits. */
static ulong get_token_info(ulong slot, byte *info)
{
	BEFORE("C_GetTokenInfo");
	rv = ((ulong (*)(ulong, byte *))real->fn[GetTokenInfo])(slot, info);
	ulong n, *flags = (ulong *)(info + 96);
	if (fault("token-flags", "", &n))
		*flags |= n;
	if (fault("max-sessions", "", &n))
		flags[1] = flags[3] = n;
	return rv;
}

static ulong open_session(ulong slot, ulong flags, void *app, void *notify, ulong *session)
{
	BEFORE("C_OpenSession");
	last_slot = slot;
	rv = ((ulong (*)(ulong, ulong, void *, void *, ulong *))real->fn[OpenSession])(slot, flags, app, notify, session);
	if (rv == 0)
		note("open", *session);
	return rv;
}

static ulong close_session(ulong session)
{
	note("close", session);
	return ((ulong (*)(ulong))real->fn[CloseSession])(session);
}

static ulong login(ulong session, ulong user, byte *pin, ulong len)
{
	note("C_Login", user);
	BEFORE("C_Login");
	return ((ulong (*)(ulong, ulong, byte *, ulong))real->fn[Login])(session, user, pin, len);
}

static ulong create_object(ulong session, void *template, ulong n, ulong *object)
{
	BEFORE("C_CreateObject");
	return ((ulong (*)(ulong, void *, ulong, ulong *))real->fn[CreateObject])(session, template, n, object);
}

static ulong sign_init(ulong session, void *mechanism, ulong key)
{
	BEFORE("C_SignInit");
	ulong n, kind = *(ulong *)mechanism;
	if (fault("no-mechanism", "", &n) && n == kind)
		return 0x70; /* CKR_MECHANISM_INVALID */
	return ((ulong (*)(ulong, void *, ulong))real->fn[SignInit])(session, mechanism, key);
}

static ulong sign(ulong session, byte *data, ulong len, byte *sig, ulong *siglen)
{
	if (sig) { /* not for the question how long it will be */
		note("C_Sign", 0);
		BEFORE("C_Sign");
	}
	ulong rv = ((ulong (*)(ulong, byte *, ulong, byte *, ulong *))real->fn[Sign])(session, data, len, sig, siglen), n;
	if (rv == 0 && sig && fault("wrong-signature", "", &n))
		sig[0] ^= 1;
	return rv;
}

ulong C_GetFunctionList(struct list **out)
{
	void *module = dlopen(getenv("SHIM_MODULE"), RTLD_NOW);
	if (!module)
		return 5;
	ulong rv = ((ulong (*)(struct list **))dlsym(module, "C_GetFunctionList"))(&real);
	if (rv)
		return rv;
	memcpy(&ours, real, sizeof ours);
	ours.fn[Initialize] = initialize;
	ours.fn[GetSlotList] = get_slot_list;
	ours.fn[GetTokenInfo] = get_token_info;
	ours.fn[OpenSession] = open_session;
	ours.fn[CloseSession] = close_session;
	ours.fn[Login] = login;
	ours.fn[CreateObject] = create_object;
	ours.fn[SignInit] = sign_init;
	ours.fn[Sign] = sign;
	*out = &ours;
	return 0;
}
