package socket

import (
	"fmt"
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

// mkdir grants the directory, and what will be made in it, to this user, SYSTEM and the administrators, and inherits
// nothing from above.
func mkdir(path string) error {
	user, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return fmt.Errorf("reading own SID: %w", err)
	}
	sd, err := windows.SecurityDescriptorFromString("D:P(A;OICI;FA;;;" + user.User.Sid.String() + ")(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)")
	if err != nil {
		return fmt.Errorf("making access control list: %w", err)
	}
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return err
	}
	sa := &windows.SecurityAttributes{SecurityDescriptor: sd}
	sa.Length = uint32(unsafe.Sizeof(*sa))
	if err := windows.CreateDirectory(name, sa); err != nil {
		return &os.PathError{Op: "mkdir", Path: path, Err: err}
	}
	return nil
}

// ours is always true: a file's owner is not told by fs.FileInfo, and the directory's access control list decides.
func ours(fs.FileInfo) (uid int, ok bool) { return -1, true }

func checkPrivate(path string, _ fs.FileInfo) error {
	user, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return fmt.Errorf("reading own SID: %w", err)
	}
	sd, err := windows.GetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.OWNER_SECURITY_INFORMATION|windows.DACL_SECURITY_INFORMATION)
	if err != nil {
		return fmt.Errorf("reading access control list of %q: %w", path, err)
	}
	trusted := func(sid *windows.SID) bool {
		return sid.Equals(user.User.Sid) || sid.IsWellKnown(windows.WinLocalSystemSid) ||
			sid.IsWellKnown(windows.WinBuiltinAdministratorsSid) || sid.IsWellKnown(windows.WinCreatorOwnerSid) ||
			sid.IsWellKnown(windows.WinCreatorOwnerRightsSid)
	}
	sid, _, err := sd.Owner()
	if err != nil || sid == nil || !trusted(sid) {
		return &UnsafeError{path, "belongs to another user", "choose a directory of your own"}
	}
	acl, _, err := sd.DACL()
	if err != nil || acl == nil { // no list at all grants everything to everybody
		return &UnsafeError{path, "has no access control list", "remove it, it will be made anew"}
	}
	for i := range uint32(acl.AceCount) {
		var ace *windows.ACCESS_ALLOWED_ACE
		if err := windows.GetAce(acl, i, &ace); err != nil {
			return fmt.Errorf("reading access control list of %q: %w", path, err)
		}
		if ace.Header.AceType == windows.ACCESS_DENIED_ACE_TYPE {
			continue
		}
		// A kind of entry other than a plain grant has its SID elsewhere; nobody needs one here.
		if ace.Header.AceType != windows.ACCESS_ALLOWED_ACE_TYPE || !trusted((*windows.SID)(unsafe.Pointer(&ace.SidStart))) {
			return &UnsafeError{path, "is open to other users", "remove it, it will be made anew, or choose another directory"}
		}
	}
	return nil
}

// checkLink and checkParent leave the parents to the system: a profile's directories are protected by default, and a
// directory under C:\ cannot be replaced by users who did not make it.
func checkLink(string, fs.FileInfo) error { return nil }

func checkParent(string) error { return nil }
