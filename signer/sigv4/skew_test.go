package sigv4

import (
	"net/http"
	"testing"
	"time"
)

func TestObserveResponse(t *testing.T) {
	const minute = time.Minute
	for _, tc := range []struct {
		name   string
		server time.Duration // the server's clock ahead of ours
		trip   time.Duration
		status int
		header http.Header // beside Date
		again  bool
		offset time.Duration
	}{
		{name: "right", status: 401},
		{name: "four minutes", server: 4 * minute, status: 401},
		{name: "ten minutes ahead", server: 10 * minute, status: 403, again: true, offset: 10 * minute},
		{name: "ten minutes behind", server: -10 * minute, status: 401, again: true, offset: -10 * minute},
		{name: "accepted all the same", server: 10 * minute, status: 200, offset: 10 * minute},
		{name: "half of the trip", server: 10 * minute, trip: 2 * minute, status: 401, again: true, offset: 10 * minute},
		{name: "slow trip explains it", server: 0, trip: 14 * minute, status: 401},
		{name: "trip too slow", server: time.Hour, trip: 16 * minute, status: 401},
		{name: "our clock was set back meanwhile", server: time.Hour, trip: -minute, status: 401},
		{name: "from a cache", server: time.Hour, status: 401, header: http.Header{"Age": {"0"}}},
		{name: "absurd", server: 25 * time.Hour, status: 401},
		{name: "no date", status: 401, header: http.Header{"Date": {"yesterday"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			now := testTime
			s := newSigner(t, func(o *Options) { o.Clock = func() time.Time { return now } })
			sentAt := now
			now = now.Add(tc.trip)
			h := http.Header{"Date": {sentAt.Add(tc.trip / 2).Add(tc.server).Format(http.TimeFormat)}}
			for name, values := range tc.header {
				h[name] = values
			}
			if again := s.ObserveResponse(tc.status, h, sentAt); again != tc.again {
				t.Errorf("again %t, want %t", again, tc.again)
			}
			if got := s.skew.correct(now).Sub(now); got != tc.offset {
				t.Errorf("offset %s, want %s", got, tc.offset)
			}
		})
	}
}

// TestSkewIsCorrected: a signer with a wrong clock signs what a right one accepts, after one
// refusal; it returns to its own clock when that is set.
func TestSkewIsCorrected(t *testing.T) {
	now := testTime.Add(-10 * time.Minute)
	s := newSigner(t, func(o *Options) { o.Clock = func() time.Time { return now } })
	date := http.Header{"Date": {testTime.Format(http.TimeFormat)}}
	if _, err := testVerifier().Verify(signed(t, s, testRequest())); err == nil {
		t.Fatal("accepted ten minutes of skew")
	}
	if !s.ObserveResponse(http.StatusUnauthorized, date, now) {
		t.Error("not to be signed again")
	}
	if _, err := testVerifier().Verify(signed(t, s, testRequest())); err != nil {
		t.Error(err)
	}
	if s.ObserveResponse(http.StatusForbidden, date, now.Add(time.Second)) {
		t.Error("a refusal for another reason is to be signed again")
	}
	// A second request that was in flight when the first one's answer came.
	if !s.ObserveResponse(http.StatusUnauthorized, date, now.Add(-time.Second)) {
		t.Error("signed before the correction, and not to be signed again")
	}
	now = testTime
	if _, err := testVerifier().Verify(signed(t, s, testRequest())); err == nil {
		t.Error("the old correction still fits")
	}
	if !s.ObserveResponse(http.StatusUnauthorized, date, now) {
		t.Error("not to be signed again after the clock was set")
	}
	if _, err := testVerifier().Verify(signed(t, s, testRequest())); err != nil {
		t.Error(err)
	}
}
