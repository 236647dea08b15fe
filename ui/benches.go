package ui

type benchCache struct{}
