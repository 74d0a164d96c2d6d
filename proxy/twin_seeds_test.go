package proxy

var twinSeeds = []struct{ client, server, want string }{
	{":method: GET\n:scheme: https\n:authority: x\n:path: /api?x=1\naccept: a\nHEADERS end\n", ":status: 200\ncontent-type: text/plain\nHEADERS\nDATA 10\nDATA 20000\n", ""},
	{":method: POST\n:scheme: https\n:authority: x\n:path: /api?x=1\naccept: a\nHEADERS\nDATA 100\nDATA 20000 pad=3\nDATA 5 end\n", "FRAMES\n:status: 200\ncontent-type: text/plain\nHEADERS\nDATA 10\nDATA 20000\n", ""},
}
