"""Room 8: stages and rounds. A printable plan whose stages speak only through files."""
