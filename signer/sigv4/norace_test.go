//go:build !race

package sigv4

const raceDetector = false
