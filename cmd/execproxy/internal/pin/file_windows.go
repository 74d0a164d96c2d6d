package pin

import (
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

const (
	nonblock = 0
	noFollow = 0
)

// ownership knows nothing: ACLs decide who may read a file, and the mode says nothing about them.
func ownership(fs.FileInfo) owned { return owned{} }

// basicInfo is FILE_BASIC_INFO.
type basicInfo struct {
	Creation, LastAccess, LastWrite, Change int64 // in 100 ns since 1601
	Attributes                              uint32
	_                                       uint32
}

// epoch is 1970 in 100 ns since 1601.
const epoch = 116444736000000000

func identify(f *os.File) (identity, error) {
	h := windows.Handle(f.Fd())
	var i windows.ByHandleFileInformation
	if err := windows.GetFileInformationByHandle(h, &i); err != nil {
		return identity{}, err
	}
	var b basicInfo
	if err := windows.GetFileInformationByHandleEx(h, windows.FileBasicInfo, (*byte)(unsafe.Pointer(&b)), uint32(unsafe.Sizeof(b))); err != nil {
		return identity{}, err
	}
	return identity{
		Dev:   uint64(i.VolumeSerialNumber),
		Inode: uint64(i.FileIndexHigh)<<32 | uint64(i.FileIndexLow),
		Size:  int64(i.FileSizeHigh)<<32 | int64(i.FileSizeLow),
		Mtime: (b.LastWrite - epoch) * 100,
		Ctime: (b.Change - epoch) * 100,
	}, nil
}
