package sigv4

import (
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	skewThreshold = 4 * time.Minute  // below the five that verifiers allow
	maxRoundTrip  = 15 * time.Minute // a slower answer tells nothing about the clock
	maxSkew       = 24 * time.Hour   // a server may not have requests signed for next year
)

// skew is what the servers' clock shows more than ours.
type skew struct {
	offset atomic.Int64 // time.Duration; changed with mu held

	mu      sync.Mutex
	changed time.Time // local time of the last change
}

func (k *skew) correct(now time.Time) time.Time { return now.Add(time.Duration(k.offset.Load())) }

// ObserveResponse corrects the signing time by the Date of an answer to a request that was
// sent at sentAt, local time. It follows the rule of the AWS SDKs: Date is taken for the
// middle of the round trip; an answer with an Age (from a cache) or one that took over 15
// minutes is ignored; a difference of up to four minutes is left alone. One of over a day
// is ignored too. It reports true where the answer is a 401 or 403 and a request signed
// now gets another time than this one had.
func (s *Signer) ObserveResponse(status int, header http.Header, sentAt time.Time) bool {
	if header.Get("Age") != "" {
		return false
	}
	date, err := http.ParseTime(header.Get("Date"))
	if err != nil {
		return false
	}
	sentAt, now := sentAt.Round(0), s.now().Round(0) // wall clocks: a machine may have slept meanwhile
	trip := now.Sub(sentAt)
	if trip < 0 || trip > maxRoundTrip {
		return false
	}
	measured := date.Sub(sentAt.Add(trip / 2))
	if measured.Abs() > maxSkew {
		s.log.Warn("the server's clock is more than a day off this machine's: ignored; set this machine's clock",
			slog.Duration("skew", measured))
		return false
	}
	changed, later := s.skew.observe(measured, sentAt, now)
	if changed {
		s.log.Warn("this machine's clock differs from the server's: signing with the server's time; set this machine's clock",
			slog.Duration("skew", measured))
	}
	return later && (status == http.StatusUnauthorized || status == http.StatusForbidden)
}

// observe takes a measured offset. changed: it is now in force. later: the offset changed
// after sentAt, so that a request sent then was signed with another one.
func (k *skew) observe(measured time.Duration, sentAt, now time.Time) (changed, later bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if (measured - time.Duration(k.offset.Load())).Abs() > skewThreshold {
		k.offset.Store(int64(measured))
		k.changed = now
		return true, true
	}
	return false, sentAt.Before(k.changed)
}
