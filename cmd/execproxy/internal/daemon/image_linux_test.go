package daemon

import (
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
)

const someMaps = `00400000-00402000 r--p 00000000 fe:00 77                                 /usr/bin/execproxy
Size:                  8 kB
Rss:                   8 kB
Anonymous:             0 kB
VmFlags: rd mr mw me
00402000-00c86000 r-xp 00002000 fe:00 77                                 /usr/bin/execproxy (deleted)
Rss:                7436 kB
Private_Dirty:         0 kB
Anonymous:             0 kB
00c86000-00c88000 r--p 00886000 fe:00 77                                 /usr/bin/execproxy
Rss:                   8 kB
Anonymous:             4 kB
00c88000-00c8a000 rw-p 00888000 fe:00 77                                 /usr/bin/execproxy
Anonymous:             0 kB
00c8a000-00cc0000 rw-p 00000000 00:00 0
Anonymous:             0 kB
7f0170945000-7f0170a9b000 r-xp 00000000 fe:00 78                         /usr/lib/libc.so.6
Anonymous:             0 kB
7f0170a9b000-7f0170a9c000 r-xs 00000000 fe:00 77                         /usr/bin/execproxy
Anonymous:             0 kB
7ffd2a1e5000-7ffd2a1e9000 r--p 00000000 00:00 0                          [vvar]
Anonymous:             0 kB
`

// TestUntouched: what the dynamic linker has written, somebody else's pages and
// those that can be written must stay; giving them up would lose what is in them.
func TestUntouched(t *testing.T) {
	got := untouched(someMaps, 77)
	if want := []span{{0x400000, 0x402000}, {0x402000, 0xc86000}}; !slices.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
	for _, bad := range []string{"", "00402000 r-xp 0 fe:00 77 /x\nAnonymous: 0 kB\n", "2-1 r-xp 0 fe:00 77 /x\nAnonymous: 0 kB\n", "1-2 r-xp 0 fe:00 77 /x\nAnonymous:\n"} {
		if got := untouched(bad, 77); len(got) > 0 {
			t.Errorf("%q: got %x, want nothing", bad, got)
		}
	}
}

// TestLetGoOfStart: this process' own program is found, and it goes on running.
func TestLetGoOfStart(t *testing.T) {
	info, err := os.Stat("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	if len(untouched(string(smaps), info.Sys().(*syscall.Stat_t).Ino)) == 0 {
		t.Errorf("nothing of our own program in\n%s", smaps)
	}
	if err := letGoOfStart(); err != nil {
		t.Error(err)
	}
	if got := strings.ToUpper("still here"); got != "STILL HERE" {
		t.Errorf("got %q", got)
	}
}
