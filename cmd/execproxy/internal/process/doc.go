// Package process waits for processes that are not our children, and has programs end
// with what they started.
package process
