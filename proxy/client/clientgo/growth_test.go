package clientgo

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// TestNoGrowth: resolving a thousand times, with a request and a clientset each, costs
// nothing that stays.
func TestNoGrowth(t *testing.T) {
	b := newBench(t)
	r := b.resolver()
	round := func(i int) {
		config := b.config("serve")
		config.UserAgent = fmt.Sprint("controller/", i)
		res, err := r.Resolve(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		mustGet(t, res.HTTPClient, "https://k8s.example:6443/")
		c := rest.CopyConfig(res.Config)
		c.GroupVersion, c.NegotiatedSerializer = &schema.GroupVersion{Version: "v1"}, codecs
		if _, err := rest.RESTClientFor(c); err != nil {
			t.Fatal(err)
		}
		if _, err := res.StreamConfig(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 20 {
		round(i)
	}
	goroutines, files, heap, cached := runtime.NumGoroutine(), descriptors(t), live(), cacheEntries.observations()
	for i := range 1000 {
		round(i)
	}
	if n := runtime.NumGoroutine(); n > goroutines+5 {
		t.Errorf("%d goroutines, %d before", n, goroutines)
	}
	if n := descriptors(t); n > files+3 {
		t.Errorf("%d descriptors, %d before", n, files)
	}
	if n := live(); n > heap+1<<20 {
		t.Errorf("%d bytes live, %d before", n, heap)
	}
	if n := cacheEntries.observations(); n != cached {
		t.Errorf("client-go's cache of transports was asked %d times", n-cached)
	}
	b.executions(1)
	if n := len(r.entries); n != 1 {
		t.Errorf("%d entries", n)
	}
}

func live() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func descriptors(t *testing.T) int {
	t.Helper()
	if runtime.GOOS != "linux" {
		return 0
	}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// The gauge does move where client-go's cache is used.
func TestCacheEntries(t *testing.T) {
	before := cacheEntries.observations()
	if _, err := rest.TransportFor(&rest.Config{Host: "https://k8s.example", TLSClientConfig: rest.TLSClientConfig{ServerName: "cached"}}); err != nil {
		t.Fatal(err)
	}
	if cacheEntries.observations() == before {
		t.Error("rest_client_transport_cache_entries stands still")
	}
}
