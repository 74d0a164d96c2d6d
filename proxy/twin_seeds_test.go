package proxy

import (
	"fmt"
	"strings"
)

// twinSeed is an exchange that FuzzTwins starts from, for what its name says.
type twinSeed struct{ name, client, server string }

const (
	getHead  = ":method: GET\n:scheme: https\n:authority: x\n:path: /api/v1/pods\n"
	postHead = ":method: POST\n:scheme: https\n:authority: x\n:path: /api/v1/pods\n"
	okHead   = ":status: 200\ncontent-type: application/json\n"
)

func requestHead(method, path string) string {
	return ":method: " + method + "\n:scheme: https\n:authority: x\n:path: " + path + "\n"
}

func numbered(n int, format string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i, i)
	}
	return b.String()
}

// twinSeeds has an exchange for each feature.
func twinSeeds() (seeds []twinSeed) {
	add := func(name, client, server string) { seeds = append(seeds, twinSeed{name, client, server}) }
	requestSeeds(add)
	bodySeeds(add)
	answerSeeds(add)
	endSeeds(add)
	connectionSeeds(add)
	return seeds
}

type addSeed func(name, client, server string)

func requestSeeds(add addSeed) {
	add("get", getHead+"accept: application/json\nuser-agent: kubectl/v1\nHEADERS end\n", okHead+"content-length: 2048\nHEADERS\nDATA 2048\n")
	for _, m := range []string{"PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND", "get", "A_B", "TRACE", "CONNECT", "GE T", "G\\xc3", ""} {
		add("method "+m, requestHead(m, "/a")+"HEADERS\nDATA 20 end\n", okHead+"HEADERS\nDATA 5\n")
	}
	add("CONNECT", ":method: CONNECT\n:authority: x:443\nHEADERS\nDATA 5 end\n", okHead)
	add("extended CONNECT", ":method: CONNECT\n:protocol: websocket\n:scheme: https\n:authority: x\n:path: /\nHEADERS\n", okHead)

	add("no method", ":scheme: https\n:authority: x\n:path: /\nHEADERS end\n", okHead)
	add("no path", ":method: GET\n:scheme: https\n:authority: x\nHEADERS end\n", okHead)
	add("no scheme", ":method: GET\n:authority: x\n:path: /\nHEADERS end\n", okHead)
	for _, s := range []string{"http", "ftp", "HTTPS", ""} {
		add("scheme "+s, ":method: GET\n:scheme: "+s+"\n:authority: x\n:path: /\nHEADERS end\n", okHead)
	}
	add("pseudo field twice", getHead+":path: /other\nHEADERS end\n", okHead)
	add("pseudo field behind", ":method: GET\n:scheme: https\na: b\n:path: /\nHEADERS end\n", okHead)
	add("unknown pseudo field", getHead+":x: y\nHEADERS end\n", okHead)
	add("status in a request", getHead+":status: 200\nHEADERS end\n", okHead)
	add("no fields at all", "HEADERS end\n", okHead)

	for _, a := range []string{"a@b", "a b/c", "", "[::1]:80", "x:y", "\\xff", "evil.example:443"} {
		add("authority "+a, ":method: GET\n:scheme: https\n:authority: "+a+"\n:path: /\nHEADERS end\n", okHead)
	}
	add("host alone", ":method: GET\n:scheme: https\n:path: /\nhost: y\nHEADERS end\n", okHead)
	add("two hosts", ":method: GET\n:scheme: https\n:path: /\nhost: y\nhost: z\nHEADERS end\n", okHead)
	add("authority and host", getHead+"host: y\nHEADERS end\n", okHead)
	add("neither", ":method: GET\n:scheme: https\n:path: /\nHEADERS end\n", okHead)

	for _, path := range []string{"", "/%2f/a%2Fb", "/a//b", "//a", "//a%2fb", "//a|b", "/a?", "/?", "/a?b;c&d=%zz", "/a?b?c", "/a/../b", "/./", "/a%00",
		"/:x@y!$&'()*+,;=~", "/a|b", "/\\xc3\\xa9", "/a\\\\b", "/[x]?[y]", "/a\"<>", "/{x}", "/%zz", "/%", "/a%2", "/a%2?b", "*", "a/b", "https://evil/x",
		"/a b", "/a#b", "/a\\x01", "/a\\x7f", "/a?b c", "\\xff", "/a\\tb", "/a?\\xff", ":80", "?a", "/a?watch=true&watch=1"} {
		add("path "+path, requestHead("GET", path)+"HEADERS end\n", okHead)
	}
	add("OPTIONS *", requestHead("OPTIONS", "*")+"HEADERS end\n", okHead)
	add("many query parameters", requestHead("GET", "/a?"+numbered(600, "p%d=%d&"))+"HEADERS end\n", okHead)

	add("repeated fields", getHead+"accept: a\nx-a: 1\nx-b: 2\nx-a: 3\naccept: b, c\nx-a: \nHEADERS end\n",
		":status: 200\nx-a: 1\nvary: a\nx-a: 2\nvary: b\nset-cookie: a=1\nset-cookie: b=2\nx-a: \nHEADERS\nDATA 1\n")
	add("odd names", getHead+"x-empty: \nx_y: 1\n!#$%&'*+-.^_`|~: 2\n0: 3\nHEADERS end\n", ":status: 200\nx-empty: \nx_y: 1\n!#$: 2\nHEADERS\n")
	for _, f := range []string{"X-Up: 1", "a b: 1", "a\\n: 1", "\\x00: 1", "x-a: b\\nc", "x-a: b\\x00c", "x-a: b\\rc", "x-a: \\x7f", "x-a: \\xff\\xfe", "x-a:  lead",
		"x-a: trail ", "x-a: \\t", "a\\xc3: 1", "a:b: 1", "x-a: a\\tb"} {
		add("field "+f, getHead+f+"\nHEADERS end\n", okHead)
	}
	for _, f := range []string{"connection: close", "connection: x-a", "connection: keep-alive, upgrade", "connection: ", "keep-alive: timeout=5", "proxy-connection: close",
		"transfer-encoding: chunked", "transfer-encoding: ", "upgrade: h2c", "upgrade: websocket", "te: gzip", "te: trailers, gzip", "te: Trailers", "te: trailers", "te: ",
		"te: trailers\nte: trailers", "connection: impersonate-user\nimpersonate-user: a"} {
		add("hop by hop "+f, getHead+"x-a: 1\n"+f+"\nHEADERS end\n", okHead)
	}
	add("dropped fields", getHead+"x-remote-user: a\nx-remote-extra-b: c\nx-amz-date: 1\nx-amz-security-token: t\nx-forwarded-for: 1.2.3.4\nforwarded: for=a\nvia: 1.1 a\n"+
		"signature: a\nsignature-input: b\nx-k8s-audience: c\nx-http-method-override: PUT\nproxy-authorization: Basic x\nhttp2-settings: a\nx-original-url: /a\n"+
		"execproxy-error: me\nx__remote__user: u\nx_remote_user: v\nx-real-ip: 1\nkept: 1\nHEADERS end\n", okHead)
	add("kept fields", getHead+"impersonate-user: a\nimpersonate-group: g\nimpersonate-group: h\nimpersonate-extra-x: y\naudit-id: 1\naccept-encoding: gzip\norigin: https://a\n"+
		"referer: b\nrange: bytes=0-\nidempotency-key: k\nx-idempotency-key: l\ntraceparent: 00-1\nkubectl-command: get\npriority: u=1\nHEADERS end\n", okHead)
	add("cookie crumbs", getHead+"cookie: a=1\ncookie: b=2\nx: y\nHEADERS end\n", okHead)
	add("foreign authorization", getHead+"authorization: Bearer t\nHEADERS end\n", okHead)
	add("foreign authorization and no path", requestHead("GET", "0")+"authorization: Bearer t\nHEADERS end\n", okHead)
	add("empty authorization", getHead+"authorization: \nHEADERS end\n", okHead)
	add("bearer in a subprotocol", getHead+"sec-websocket-protocol: a, base64url.bearer.authorization.k8s.io.x\nHEADERS end\n", okHead)
	add("user agents", getHead+"user-agent: a\nuser-agent: b\nHEADERS end\n", okHead)
	add("empty user agent", getHead+"user-agent: \nHEADERS end\n", okHead)
	add("large head", getHead+"x-large: "+strings.Repeat("v", 12000)+"\nx-larger: "+strings.Repeat("w", 15000)+"\nHEADERS end\n",
		":status: 200\nx-large: "+strings.Repeat("a", 15000)+"\nx-l: "+strings.Repeat("b", 9000)+"\nHEADERS\nDATA 5\n")
	add("many fields", getHead+numbered(38, "x-%d: %d\n")+"HEADERS end\n", okHead)

	add("continuation", getHead+"x-a: 1234567890123456789012345678901234567890\nx-b: 1234567890123456789012345678901234567890\nHEADERS cut=7 pad=9 prio end\n",
		"FRAMES\n"+okHead+"x-c: 1234567890123456789012345678901234567890\nHEADERS cut=5 pad=3\nDATA 5\nx-t: 1\nHEADERS cut=1 end\n")
	add("one byte each", getHead+"HEADERS cut=1 plain end\n", okHead)
	add("never indexed", getHead+"x-secret: abc\nHEADERS plain end\n", "FRAMES\n"+okHead+"x-secret: def\nHEADERS plain\nDATA 2\n")
}

func bodySeeds(add addSeed) {
	for _, l := range []struct {
		length string
		n      int
	}{{"5", 5}, {"0", 0}, {"5", 4}, {"5", 6}, {"5", 0}, {"0", 3}, {"005", 5}, {"+5", 5}, {"-1", 0}, {"a", 1}, {"5, 5", 5}, {"", 5}, {"99999999999999999999", 5}, {"5\ncontent-length: 5", 5}} {
		add(fmt.Sprintf("length %s of %d", l.length, l.n), postHead+"content-length: "+l.length+"\nHEADERS\nDATA "+fmt.Sprint(l.n)+" end\n", okHead+"HEADERS\nDATA 9\n")
	}
	add("get with a length of 0", getHead+"content-length: 0\nHEADERS end\n", okHead)
	add("length and no body", postHead+"content-length: 5\nHEADERS end\n", okHead)
	add("length 0 and no body", postHead+"content-length: 0\nHEADERS end\n", okHead)
	add("get with a body", getHead+"content-length: 7\nHEADERS\nDATA 7 end\n", okHead)
	add("too much at once", postHead+"content-length: 5\nHEADERS\nDATA 3\nDATA 30000 end\n", okHead)
	add("too much behind an early answer", postHead+"content-length: 5\nHEADERS\nDATA 3\nWAIT head\nDATA 30 end\n", "EARLY\n"+okHead+"HEADERS\nWAIT gone\n")

	add("upload", postHead+"content-type: application/json\nHEADERS\nDATA 100\nDATA 20000 pad=3\nDATA 5 end\n", okHead+"HEADERS\nDATA 10\n")
	add("large upload", postHead+"HEADERS\nDATA 200000\nDATA 200000 end\n", okHead+"HEADERS\nDATA 10\n")
	add("upload to frames", postHead+"content-length: 300000\nHEADERS\nDATA 300000 end\n", "FRAMES\n"+okHead+"HEADERS\nDATA 10\n")
	add("empty pieces", postHead+"HEADERS\nDATA 0\nDATA 0 pad=10\nDATA 5\nDATA 0\nDATA 0 end\n", okHead+"HEADERS\n")
	add("much padding", postHead+"HEADERS pad=255\nDATA 5 pad=255\nDATA 1 pad=1\nDATA 2 pad=255 end\n", "FRAMES\n"+okHead+"HEADERS pad=200\nDATA 5 pad=255\nDATA 1 pad=1\nDATA 0 pad=7 end\n")
	add("expect", postHead+"expect: 100-continue\ncontent-length: 5\nHEADERS\nWAIT continue\nDATA 5 end\n", okHead+"HEADERS\nDATA 2\n")
	add("expect something else", postHead+"expect: a\nHEADERS\nDATA 5 end\n", okHead)
	add("talk", postHead+"HEADERS\nWAIT seen\nDATA 10\nWAIT read 10\nWAIT head\nDATA 20\nWAIT body 15\nDATA 5 end\n",
		"EARLY\nREAD 10\n"+okHead+"HEADERS\nREAD 20\nDATA 15\nREAD all\nDATA 3\n")
	add("early answer", postHead+"content-length: 30000\nHEADERS\nDATA 10\nWAIT head\nDATA 29990 end\n", "EARLY\n:status: 413\nHEADERS\nDATA 5\n")
	add("early answer to a large upload", postHead+"HEADERS\nDATA 300000\nDATA 100000 end\n", "EARLY\nREAD 5\n:status: 403\nHEADERS\nDATA 5\n")
	add("priorities", postHead+"PRIORITY\nHEADERS prio\nPRIORITY\nPING\nDATA 5\nPRIORITY\nDATA 5 end\nPRIORITY\n", okHead+"HEADERS\nDATA 5\n")

	add("trailer", postHead+"trailer: x-sum, x-more\nHEADERS\nDATA 10\nx-sum: 1\nx-more: 2\nHEADERS end\n", okHead+"trailer: X-Sum\nHEADERS\nDATA 5\nx-sum: 9\n")
	add("unannounced trailer", postHead+"HEADERS\nDATA 10\nx-sum: 1\nHEADERS end\n", okHead+"HEADERS\nDATA 5\nx-sum: 9\n")
	add("trailer and no body", postHead+"trailer: x-sum\nHEADERS\nx-sum: 1\nHEADERS end\n", okHead+"HEADERS\nx-sum: 9\n")
	add("trailer that is announced and does not come", postHead+"trailer: x-sum\nHEADERS\nDATA 3 end\n", okHead+"trailer: X-Sum\nHEADERS\nDATA 5\n")
	add("trailer of both kinds", postHead+"trailer: x-sum\nHEADERS\nDATA 3\nx-sum: a\nx-other: b\nx-sum: c\nHEADERS end\n",
		okHead+"trailer: X-Sum\nHEADERS\nDATA 5\nx-other: 1\nx-sum: 2\nx-sum: 3\n")
	add("trailer with forbidden fields", postHead+"trailer: x-remote-user, content-length, te, authorization\nHEADERS\nDATA 3\nx-remote-user: a\nHEADERS end\n", okHead+"HEADERS\nDATA 1\n")
	add("trailer with policy's fields", postHead+"trailer: x-remote-user, x-amz-date, x-a\nHEADERS\nDATA 3\nx-remote-user: a\nx-amz-date: b\nx-a: 1\nHEADERS end\n", okHead+"HEADERS\nDATA 1\n")
	add("trailer with a length", postHead+"content-length: 5\ntrailer: x-sum\nHEADERS\nDATA 5\nx-sum: 1\nHEADERS end\n", "FRAMES\n"+okHead+"content-length: 5\nHEADERS\nDATA 5\nx-sum: 1\nHEADERS end\n")
	add("trailer with a pseudo field", postHead+"HEADERS\nDATA 5\n:path: /\nHEADERS end\n", okHead)
	add("trailer with upper case", postHead+"HEADERS\nDATA 5\nX-A: /\nHEADERS end\n", okHead)
	add("trailer that does not end", postHead+"HEADERS\nDATA 5\nx-sum: 1\nHEADERS\nDATA 5 end\n", okHead)
	add("trailer short of the length", postHead+"content-length: 9\nHEADERS\nDATA 5\nx-sum: 1\nHEADERS end\n", okHead)
	add("trailer behind large bodies", postHead+"trailer: x-sum\nHEADERS\nDATA 100000\nx-sum: 1\nHEADERS end\n", "FRAMES\n"+okHead+"HEADERS\nDATA 100000\nx-sum: 9\nx-sum: 10\nx-t: \nHEADERS end\n")
}

func answerSeeds(add addSeed) {
	add("answer without a length", getHead+"HEADERS end\n", okHead+"HEADERS\nDATA 10\nDATA 20000\nDATA 1\n")
	add("answer without a body", getHead+"HEADERS end\n", ":status: 200\nHEADERS end\n")
	add("answer with an empty body", getHead+"HEADERS end\n", ":status: 200\nHEADERS\nDATA 0\nDATA 0 end\n")
	add("answer that is large", getHead+"HEADERS end\n", okHead+"HEADERS\nDATA 300000\n")
	add("answer that is large, with its length", getHead+"HEADERS end\n", okHead+"content-length: 300000\nHEADERS\nDATA 300000\n")
	add("watch", requestHead("GET", "/api/v1/pods?watch=true")+"HEADERS end\nWAIT head\nWAIT body 100\nWAIT body 300\n",
		okHead+"HEADERS\nWAIT head\nDATA 100\nWAIT body 100\nDATA 200\nWAIT body 300\nDATA 50\n")
	for _, frames := range []string{"", "FRAMES\n"} {
		for _, code := range []string{"204", "205", "299", "304", "404", "410", "429", "500", "503", "999"} {
			add(frames+"status "+code, getHead+"HEADERS end\n", frames+":status: "+code+"\nretry-after: 1\nwww-authenticate: Basic\nHEADERS end\n")
		}
		add(frames+"304 with a length", getHead+"if-none-match: a\nHEADERS end\n", frames+":status: 304\ncontent-length: 100\netag: a\nHEADERS end\n")
		add(frames+"204 with a length", getHead+"HEADERS end\n", frames+":status: 204\ncontent-length: 0\nHEADERS end\n")
		add(frames+"HEAD", requestHead("HEAD", "/a")+"HEADERS end\n", frames+okHead+"content-length: 5000\nHEADERS end\n")
		add(frames+"HEAD without a length", requestHead("HEAD", "/a")+"HEADERS end\n", frames+okHead+"HEADERS end\n")
		add(frames+"HEAD with a trailer", requestHead("HEAD", "/a")+"HEADERS end\n", frames+okHead+"trailer: X-Sum\nHEADERS\nx-sum: 1\n")
		add(frames+"no type", getHead+"HEADERS end\n", frames+":status: 200\nHEADERS\nDATA 5\n")
		add(frames+"date and type", getHead+"HEADERS end\n", frames+":status: 200\ndate: Thu, 01 Jan 1970 00:00:00 GMT\nserver: a\ncontent-type: text/html\ncontent-encoding: gzip\nHEADERS\nDATA 5\n")
		add(frames+"100 and 103", getHead+"HEADERS end\n", frames+":status: 100\nHEADERS\n:status: 103\nlink: a\nHEADERS\n:status: 200\nx-a: 1\nHEADERS\nDATA 5\n")
	}
	add("answer's hop by hop fields", getHead+"HEADERS end\n",
		":status: 200\nconnection: x-a\nx-a: 1\nkeep-alive: 1\nalt-svc: h3=a\nexecproxy-error: me\nproxy-authenticate: Basic\nte: a\nupgrade: h2\nx-b: 2\nHEADERS\nDATA 5\n")
	for _, f := range []string{"connection: close", "connection: x-b", "transfer-encoding: chunked", "upgrade: a", "Up: 1", "a b: 1", "x-a: b\\x00", "x-a: b\\nc", ":path: /", "te: a", "x-a:  b ",
		":status: 201", "x-a: \\xff", "trailer: x-b, te", "content-length: 5", "alt-svc: a", "execproxy-error: me"} {
		add("answer's field "+f, getHead+"HEADERS end\n", "FRAMES\n:status: 200\nx-b: 1\n"+f+"\nHEADERS\nDATA 5\n")
	}
	for _, code := range []string{"", "20", "2000", "abc", "099", "000", "600", "-20", "2 0"} {
		add("answer's status "+code, getHead+"HEADERS end\n", "FRAMES\n:status: "+code+"\nHEADERS\nDATA 5\n")
	}
	for _, l := range []struct {
		length string
		n      int
	}{{"5", 5}, {"5", 4}, {"5", 6}, {"5", 0}, {"0", 5}, {"0", 0}, {"a", 5}, {"5, 5", 5}, {"+5", 5}, {"-1", 5}, {"", 5}, {"300000", 300000}, {"99999999999999999999", 5},
		{"5\ncontent-length: 5", 5}, {"5\ncontent-length: 6", 5}} {
		add(fmt.Sprintf("answer's length %s of %d", l.length, l.n), getHead+"HEADERS end\n", "FRAMES\n:status: 200\ncontent-length: "+l.length+"\nHEADERS\nDATA "+fmt.Sprint(l.n)+" end\n")
	}
	add("answer with a wrong length by net/http", getHead+"HEADERS end\n", ":status: 200\ncontent-length: 50\nHEADERS\nDATA 5\n")
	add("204 with a length that is not 0", getHead+"HEADERS end\n", "FRAMES\n:status: 204\ncontent-length: 4\nHEADERS end\n")
	add("length twice, and none of it", getHead+"HEADERS end\n", "FRAMES\n:status: 200\ncontent-length: 5\ncontent-length: 5\nHEADERS\nDATA 0 end\n")
	add("length and the end", getHead+"HEADERS end\n", "FRAMES\n:status: 200\ncontent-length: 5\nHEADERS end\n")
	add("body behind HEAD", requestHead("HEAD", "/a")+"HEADERS end\n", "FRAMES\n:status: 200\nHEADERS\nDATA 5 end\n")
	add("body behind 204", getHead+"HEADERS end\n", "FRAMES\n:status: 204\nHEADERS\nDATA 5 end\n")
	add("body behind 304", getHead+"HEADERS end\n", "FRAMES\n:status: 304\nHEADERS\nDATA 5 end\n")
	add("answer's trailer that goes on", getHead+"HEADERS end\n", "FRAMES\n:status: 200\nHEADERS\nDATA 5\nx: 1\nHEADERS\nDATA 5 end\n")
	add("answer's trailer with forbidden fields", getHead+"HEADERS end\n", "FRAMES\n"+okHead+"HEADERS\nDATA 5\nconnection: close\ncontent-length: 9\nalt-svc: h3\nx-a: 1\nexecproxy-error: me\nHEADERS end\n")
	add("answer's trailer with a status", getHead+"HEADERS end\n", "FRAMES\n"+okHead+"HEADERS\nDATA 5\n:status: 200\nHEADERS end\n")
	add("answer like one of gRPC", postHead+"te: trailers\ncontent-type: application/grpc\nHEADERS\nDATA 5 end\n", "FRAMES\n:status: 200\ncontent-type: application/grpc\ngrpc-status: 1\nHEADERS end\n")
	add("101", getHead+"HEADERS end\n", "FRAMES\n:status: 101\nHEADERS\n:status: 200\nHEADERS\nDATA 5\n")
	add("103 that ends", getHead+"HEADERS end\n", "FRAMES\n:status: 103\nHEADERS end\n")
	add("many 103", getHead+"HEADERS end\n", "FRAMES\n"+strings.Repeat(":status: 103\nlink: a\nHEADERS\n", 9)+":status: 200\nHEADERS\nDATA 5\n")
}
