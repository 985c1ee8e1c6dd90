module cachelb.example/cachelb

go 1.22
