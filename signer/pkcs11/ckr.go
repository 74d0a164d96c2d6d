package pkcs11

import "fmt"

// Return values of PKCS#11 (section 5.1 of the 2.40 base specification) that mean more here
// than "it did not work".
const (
	ckrSlotIDInvalid           = 0x003
	ckrGeneralError            = 0x005
	ckrFunctionFailed          = 0x006
	ckrDeviceError             = 0x030
	ckrDeviceMemory            = 0x031
	ckrDeviceRemoved           = 0x032
	ckrFunctionCanceled        = 0x050
	ckrKeyHandleInvalid        = 0x060
	ckrMechanismInvalid        = 0x070
	ckrMechanismParamInvalid   = 0x071
	ckrObjectHandleInvalid     = 0x082
	ckrOperationActive         = 0x090
	ckrOperationNotInitialized = 0x091
	ckrPINIncorrect            = 0x0A0
	ckrPINInvalid              = 0x0A1
	ckrPINLenRange             = 0x0A2
	ckrPINExpired              = 0x0A3
	ckrPINLocked               = 0x0A4
	ckrSessionClosed           = 0x0B0
	ckrSessionCount            = 0x0B1
	ckrSessionHandleInvalid    = 0x0B3
	ckrTokenNotPresent         = 0x0E0
	ckrTokenNotRecognized      = 0x0E1
	ckrUserNotLoggedIn         = 0x101
	ckrUserPINNotInitialized   = 0x102
	ckrCryptokiNotInitialized  = 0x190
	ckrVendorDefined           = 0x80000000
)

var ckrNames = map[uint64]string{
	0x002: "CKR_HOST_MEMORY", ckrSlotIDInvalid: "CKR_SLOT_ID_INVALID", ckrGeneralError: "CKR_GENERAL_ERROR",
	ckrFunctionFailed: "CKR_FUNCTION_FAILED", 0x007: "CKR_ARGUMENTS_BAD", 0x00A: "CKR_CANT_LOCK",
	0x013: "CKR_ATTRIBUTE_VALUE_INVALID", 0x012: "CKR_ATTRIBUTE_TYPE_INVALID", 0x010: "CKR_ATTRIBUTE_READ_ONLY",
	0x01B: "CKR_ACTION_PROHIBITED", 0x020: "CKR_DATA_INVALID", 0x021: "CKR_DATA_LEN_RANGE",
	ckrDeviceError: "CKR_DEVICE_ERROR", ckrDeviceMemory: "CKR_DEVICE_MEMORY", ckrDeviceRemoved: "CKR_DEVICE_REMOVED",
	ckrFunctionCanceled: "CKR_FUNCTION_CANCELED", 0x054: "CKR_FUNCTION_NOT_SUPPORTED",
	ckrKeyHandleInvalid: "CKR_KEY_HANDLE_INVALID", 0x062: "CKR_KEY_SIZE_RANGE", 0x063: "CKR_KEY_TYPE_INCONSISTENT",
	0x068: "CKR_KEY_FUNCTION_NOT_PERMITTED", ckrMechanismInvalid: "CKR_MECHANISM_INVALID",
	ckrMechanismParamInvalid: "CKR_MECHANISM_PARAM_INVALID", ckrObjectHandleInvalid: "CKR_OBJECT_HANDLE_INVALID",
	ckrOperationActive: "CKR_OPERATION_ACTIVE", ckrOperationNotInitialized: "CKR_OPERATION_NOT_INITIALIZED",
	ckrPINIncorrect: "CKR_PIN_INCORRECT", ckrPINInvalid: "CKR_PIN_INVALID", ckrPINLenRange: "CKR_PIN_LEN_RANGE",
	ckrPINExpired: "CKR_PIN_EXPIRED", ckrPINLocked: "CKR_PIN_LOCKED", ckrSessionClosed: "CKR_SESSION_CLOSED",
	ckrSessionCount: "CKR_SESSION_COUNT", ckrSessionHandleInvalid: "CKR_SESSION_HANDLE_INVALID",
	0x0B5: "CKR_SESSION_READ_ONLY", 0x0D0: "CKR_TEMPLATE_INCOMPLETE", 0x0D1: "CKR_TEMPLATE_INCONSISTENT",
	ckrTokenNotPresent: "CKR_TOKEN_NOT_PRESENT", ckrTokenNotRecognized: "CKR_TOKEN_NOT_RECOGNIZED",
	0x0E2: "CKR_TOKEN_WRITE_PROTECTED", 0x100: "CKR_USER_ALREADY_LOGGED_IN", ckrUserNotLoggedIn: "CKR_USER_NOT_LOGGED_IN",
	ckrUserPINNotInitialized: "CKR_USER_PIN_NOT_INITIALIZED", 0x103: "CKR_USER_TYPE_INVALID",
	0x104: "CKR_USER_ANOTHER_ALREADY_LOGGED_IN", 0x105: "CKR_USER_TOO_MANY_TYPES",
	ckrCryptokiNotInitialized: "CKR_CRYPTOKI_NOT_INITIALIZED",
}

func ckrName(code uint64) string {
	if name := ckrNames[code]; name != "" {
		return fmt.Sprintf("%s (0x%X)", name, code)
	}
	return fmt.Sprintf("return value 0x%X", code)
}

// ckrLost tells whether sessions, handles or the login are gone, or the library is beside
// itself, so that a new process may do better. General errors and the vendors' own count:
// that is what many libraries return when their device went away.
func ckrLost(code uint64) bool {
	switch code {
	case ckrSlotIDInvalid, ckrGeneralError, ckrFunctionFailed, ckrDeviceError, ckrDeviceMemory, ckrDeviceRemoved,
		ckrFunctionCanceled, ckrKeyHandleInvalid, ckrObjectHandleInvalid, ckrOperationActive, ckrOperationNotInitialized,
		ckrSessionClosed, ckrSessionCount, ckrSessionHandleInvalid, ckrTokenNotPresent, ckrTokenNotRecognized,
		ckrUserNotLoggedIn, ckrCryptokiNotInitialized:
		return true
	}
	return code >= ckrVendorDefined
}
