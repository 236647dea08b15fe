package ui

func (u *UI) record() {}
