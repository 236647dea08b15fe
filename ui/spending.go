package ui

func (u *UI) spending() {}
