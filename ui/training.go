package ui

func (u *UI) training() {}
