"""What the theses and papers print, beside what the commands of this project compute."""
