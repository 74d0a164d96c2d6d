package pin

import "context"

func passed(string) bool { return false }

func (s *Source) readDescriptor(context.Context) (reading, error) {
	return reading{}, s.fail(ErrMissing, "Windows passes no numbered descriptors on", "name a file")
}
