package proxy

import "fmt"

// endSeeds are exchanges in which somebody breaks off.
func endSeeds(add addSeed) {
	add("upstream gives up before its head", getHead+"HEADERS end\n", "RST 2\n")
	add("upstream gives up behind its head", getHead+"HEADERS end\n", okHead+"HEADERS\nWAIT head\nRST 2\n")
	add("upstream gives up in its body", getHead+"HEADERS end\n", okHead+"HEADERS\nDATA 30000\nWAIT body 30000\nRST 2\n")
	add("upstream gives up short of its length", getHead+"HEADERS end\n", okHead+"content-length: 30\nHEADERS\nDATA 20\nWAIT body 20\nRST 2\n")
	for _, code := range []int{0, 1, 2, 5, 7, 8, 11, 13, 77} {
		add(fmt.Sprintf("upstream resets with %d", code), getHead+"HEADERS end\n", fmt.Sprintf("FRAMES\n:status: 200\nHEADERS\nDATA 5\nWAIT body 5\nRST %d\n", code))
		add(fmt.Sprintf("upstream resets with %d before its head", code), postHead+"HEADERS\nDATA 5 end\n", fmt.Sprintf("FRAMES\nRST %d\n", code))
	}
	add("upstream resets before it has all", postHead+"HEADERS\nDATA 5\nWAIT read 5\nDATA 300 end\n", "FRAMES\nEARLY\nREAD 5\nRST 8\n")
	add("upstream answers and resets with 0", postHead+"HEADERS\nDATA 5\nWAIT head\nDATA 300 end\n", "FRAMES\nEARLY\nREAD 5\n:status: 200\nHEADERS\nDATA 4 end\nRST 0\n")
	add("client leaves", getHead+"HEADERS end\nWAIT body 10\nRST 8\n", okHead+"HEADERS\nDATA 10\nWAIT gone\n")
	add("client leaves before the head", getHead+"HEADERS end\nWAIT seen\nRST 8\n", "EARLY\nWAIT gone\n")
	add("client leaves at once", getHead+"HEADERS end\nRST 8\n", okHead)
	add("client leaves an upload", postHead+"HEADERS\nDATA 30\nWAIT read 30\nRST 5\n", "EARLY\nREAD 30\nWAIT gone\n")
	add("client leaves in order", postHead+"HEADERS\nDATA 30\nWAIT head\nRST 0\n", "EARLY\n"+okHead+"HEADERS\nDATA 5\nWAIT gone\n")
}

// connectionSeeds are about windows, settings, frames out of place, and many
// streams at once.
func connectionSeeds(add addSeed) {
	add("window that is small", "SETTINGS window=10\n"+getHead+"HEADERS end\nWAIT body 10\nWINDOW 5\nWAIT body 15\nWINDOW 100\nWAIT body 115\n", okHead+"HEADERS\nDATA 400\n")
	add("window of zero", "SETTINGS window=0\n"+getHead+"HEADERS end\nWAIT head\nWINDOW 1\nWAIT body 1\nWINDOW 1\nWAIT body 2\n", okHead+"HEADERS\nDATA 400\n")
	add("window of zero, and no body", "SETTINGS window=0\n"+getHead+"HEADERS end\n", okHead+"HEADERS\nx-t: 1\n")
	add("window that grows", "SETTINGS window=100\n"+getHead+"HEADERS end\nWAIT body 100\nSETTINGS window=30000\nWAIT body 30000\n", okHead+"HEADERS\nDATA 100000\n")
	add("window that shrinks", "SETTINGS window=1000\n"+getHead+"HEADERS end\nWAIT body 500\nSETTINGS window=0\nWINDOW 2000\n", okHead+"HEADERS\nDATA 500\nWAIT body 500\nDATA 5000\n")
	add("window that overflows", getHead+"HEADERS end\nWAIT head\nWINDOW 2147483647\nWINDOW 2147483647\n", okHead+"HEADERS\nWAIT gone\n")
	add("window that overflows, of the connection", getHead+"HEADERS end\nWAIT end\nCWINDOW 2147483647\n", okHead+"HEADERS\nDATA 5\n")
	add("window update of zero", getHead+"HEADERS end\nWAIT head\nWINDOW 0\n", okHead+"HEADERS\nWAIT gone\n")
	add("window update of zero, of the connection", getHead+"HEADERS end\nWAIT end\nCWINDOW 0\n", okHead+"HEADERS\nDATA 5\n")

	add("settings", "SETTINGS table=0 push=0 streams=10 frame=20000 list=100000 99=5\n"+getHead+"x-a: 1\nHEADERS end\n", okHead+"x-a: 1\nHEADERS\nDATA 100000\n")
	add("settings twice", "SETTINGS 99=5 99=6\n"+getHead+"HEADERS end\n", okHead)
	add("settings in between", postHead+"HEADERS\nSETTINGS table=100\nDATA 5\nSETTINGS frame=16777215\nDATA 5 end\n", okHead+"HEADERS\nDATA 100000\n")
	for _, s := range []string{"push=2", "window=2147483648", "frame=16383", "frame=16777216"} {
		add("settings that are wrong: "+s, getHead+"HEADERS end\nWAIT end\nSETTINGS "+s+"\n", okHead+"HEADERS\nDATA 5\n")
		add("settings that are wrong from the start: "+s, "SETTINGS "+s+"\n"+getHead+"HEADERS end\n", okHead+"HEADERS\nDATA 5\n")
	}
	for _, f := range []struct{ name, frame string }{
		{"of an unknown type", "200 255 s 0102"},
		{"of an unknown type, on 0", "77 0 0 aabb"},
		{"HEADERS on 0", "1 5 0 82"},
		{"HEADERS on an even stream", "1 5 e 82"},
		{"HEADERS without a priority that it announces", "1 37 n 82"},
		{"DATA on 0", "0 1 0 00"},
		{"DATA on an idle stream", "0 1 n 00"},
		{"DATA with padding beyond its end", "0 8 s ff00"},
		{"RST_STREAM on an idle stream", "3 0 n 00000008"},
		{"RST_STREAM of length 3", "3 0 s 000000"},
		{"RST_STREAM on 0", "3 0 0 00000008"},
		{"SETTINGS of length 5", "4 0 0 0000000000"},
		{"SETTINGS on a stream", "4 0 s 000100000000"},
		{"SETTINGS that acknowledges and has a payload", "4 1 0 000100000000"},
		{"SETTINGS that acknowledges nothing", "4 1 0"},
		{"PING of length 7", "6 0 0 00000000000000"},
		{"PING on a stream", "6 0 s 0000000000000000"},
		{"PING that answers nothing", "6 1 0 0000000000000000"},
		{"WINDOW_UPDATE of length 3", "8 0 0 000000"},
		{"WINDOW_UPDATE on an idle stream", "8 0 n 00000001"},
		{"GOAWAY", "7 0 0 0000000000000000"},
		{"GOAWAY on a stream", "7 0 s 0000000000000000"},
		{"GOAWAY with an error", "7 0 0 0000000000000001"},
		{"GOAWAY of length 7", "7 0 0 00000000000000"},
		{"PUSH_PROMISE", "5 4 s 0000000282"},
		{"CONTINUATION alone", "9 4 s 82"},
		{"PRIORITY of length 4", "2 0 s 00000000"},
		{"PRIORITY on itself", "2 0 s 0000000110"},
		{"PRIORITY on 0", "2 0 0 0000000010"},
		{"PRIORITY_UPDATE", "16 0 0 00000001753d31"},
		{"HPACK index 0", "1 5 n 80"},
		{"HPACK index out of range", "1 5 n ff80808080"},
		{"HPACK table too large", "1 5 n 3fffffff07"},
		{"HPACK that breaks off", "1 5 n 8286448f"},
	} {
		add("frame "+f.name, postHead+"HEADERS\nWAIT head\nFRAME "+f.frame+"\n", "EARLY\n"+okHead+"HEADERS\nWAIT head\nREAD all\nDATA 5\n")
	}
	add("header block that is interrupted", getHead+"HEADERS end\nWAIT end\nFRAME 1 0 n 82\nFRAME 6 0 0 0000000000000000\n", okHead+"HEADERS\nDATA 5\n")
	add("DATA on a stream that has ended", postHead+"HEADERS\nDATA 5 end\nWAIT body 5\nDATA 5\n", okHead+"HEADERS\nDATA 5\nWAIT gone\n")
	add("HEADERS on a stream that has ended", postHead+"HEADERS\nDATA 5 end\nWAIT body 5\nx: y\nHEADERS end\n", okHead+"HEADERS\nDATA 5\nWAIT gone\n")
	add("DATA before the head", "DATA 5\n"+postHead+"HEADERS end\n", okHead)
	add("RST_STREAM before the head", "RST 8\n"+postHead+"HEADERS end\n", okHead)

	add("four at once", "PARALLEL 4\n"+getHead+"HEADERS end\n", okHead+"HEADERS\nDATA 50000\nDATA 10\n")
	add("four uploads at once", "PARALLEL 4\n"+postHead+"HEADERS\nDATA 90000\nDATA 10 end\n", "FRAMES\n"+okHead+"HEADERS\nDATA 50000\nDATA 10\n")
	add("four that talk", "PARALLEL 4\n"+postHead+"HEADERS\nDATA 10\nWAIT head\nDATA 20000 end\n", "EARLY\nREAD 10\n"+okHead+"HEADERS\nREAD all\nDATA 30000\n")
	add("four that leave", "PARALLEL 4\n"+postHead+"HEADERS\nDATA 10\nWAIT body 10\nRST 8\n", "EARLY\n"+okHead+"HEADERS\nDATA 10\nWAIT gone\n")
	add("four that are malformed", "PARALLEL 4\n"+postHead+"X: 1\nHEADERS\nDATA 10 end\n", okHead)
}
