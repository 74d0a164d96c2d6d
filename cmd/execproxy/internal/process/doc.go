// Package process waits for processes that are not our children.
package process
